"""The batch is sent to the device in many small copies.

## What it finds
Ten or more copies to the device in each step, most of them below 64 KiB, issued by one function.

## Why it matters
A small copy costs the same few microseconds of host time and of latency as a large one, and from
pageable memory each one makes the host wait. A batch of 256 samples sent one by one costs 256 times
that.

## How to fix it
Put the samples into one tensor in `collate_fn` and copy that once. Ragged samples: concatenate them
and send the offsets along, or pad. Constants (means, masks, anchors) belong on the device from
the start: `register_buffer`.

## Limits
A handful of tensors per batch is normal and stays below the border. The recording does not show
which copies carry samples and which carry constants. At worst collecting them on the host takes
as long as before, a copy in the host's memory for each sample into a tensor that is new in each
step: then nothing is gained, and a buffer that is kept (pinned) or `collate_fn` is the better way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import measure, merge
from kinetoscope.metrics.transfers import Purpose, Transfers, extent_of, transfers
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.data_loading._copies import Mask
from kinetoscope.rules.data_loading._input import in_window
from kinetoscope.rules.framework._waiting import loop_bodies
from kinetoscope.units import count, duration, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


_FILLED_BYTES_PER_NS = 0.12
"""At worst, how quickly a new tensor on the host is filled: 0.7 MB took 2 to 6 ms in a recording,
with page faults and torch's threads on a busy machine."""

_MOST_LAUNCHES = 2
"""Launches between two copies up to which they are a loop over samples, all of which may go: one
call stacks or pads a list of tensors."""


class Thresholds(Options, frozen=True):
    """When small copies are worth a word."""

    min_copies: int = 10
    """Copies in a step from one function; the border of TraceLens."""
    min_bytes: int = 64
    """Smaller ones are scalars, not samples."""
    min_share: float = 0.01
    """Host time in them as a share of the step."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Count small copies by the function that issues them."""
    copies = analysis.get(transfers)
    mine = in_window(analysis, copies) & copies.of(Purpose.SMALL)
    mine &= (copies.bytes >= options.min_bytes) & copies.asked
    mine = _of_one_function(analysis, copies, mine)
    each = int(mine.sum()) / analysis.steps_on_host
    if each < options.min_copies:
        return
    ops = np.where(copies.op >= 0, copies.op, copies.call)[mine]
    spent = extent_of(analysis.trace, ops)
    if measure(spent) < options.min_share * analysis.step_ns * analysis.steps_on_host:
        return
    saved = 1 - 1 / each
    per_step = measure(spent) // analysis.steps_on_host
    loop = merge(spent, loop_bodies(analysis, ops, most_launches=_MOST_LAUNCHES))
    fill = int(copies.bytes[mine].sum() / _FILLED_BYTES_PER_NS) // analysis.steps_on_host
    yield Hit(
        message=f"{count(round(each))} small copies to the device in each step "
        f"({size(float(np.median(copies.bytes[mine])))} each) take the host "
        f"{duration(per_step)}.",
        evidence=(
            Evidence("copies_per_step", round(each, 1), "count"),
            Evidence("median_size", int(np.median(copies.bytes[mine])), "bytes"),
            Evidence("host_time", per_step, "ns"),
        ),
        locations=analysis.locations(copies.row[mine], calls=("to", "cuda", "copy_", "tensor")),
        fix=Fix(
            summary="Collect the samples into one tensor on the host and copy it once.",
            snippet="batch = torch.stack(samples).to(device, non_blocking=True)",
            reference="https://docs.pytorch.org/docs/stable/data.html#working-with-collate-fn",
        ),
        gain=analysis.gain(
            Change(drop_calls=copies.calls(mine), extra_host_ns=fill),
            Change(host_cut=spent, host_cut_factor=saved, drop_calls=copies.calls(mine)),
            Change(host_cut=loop, host_cut_factor=saved, drop_calls=copies.calls(mine)),
        ),
        confidence=0.7,
        claims=loop,
    )


def _of_one_function(analysis: Analysis, copies: Transfers, mine: Mask) -> Mask:
    """Those of the copies that the busiest function issues."""
    where = np.flatnonzero(mine)
    frames = analysis.locator.frames(copies.row[where])
    tree, names = analysis.trace.tree, analysis.trace.column("name_id")
    key = np.where(frames >= 0, names[tree.rows[np.maximum(frames, 0)]], -1)
    ids, group = np.unique(key, return_inverse=True)
    result = np.zeros_like(mine)
    if ids.size:
        result[where[group == np.bincount(group).argmax()]] = True
    return result


def _one_by_one(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 2_000
        t.step(at, 2_000)
        for i in range(32):
            begin = at + 10 + 50 * i
            t.op("aten::to", begin, 40)
            t.copy("HtoD Pageable", 4_096, begin + 25, 2, launch_at=begin + 15, launch_dur=20)
        t.kernel("gemm", at + 1_700, 250, launch_at=at + 1_690)


def _a_few(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 2_000
        t.step(at, 2_000)
        for i in range(4):
            begin = at + 10 + 50 * i
            t.op("aten::to", begin, 40)
            t.copy("HtoD Pageable", 4_096, begin + 25, 2, launch_at=begin + 15, launch_dur=20)
        t.kernel("gemm", at + 250, 1_700, launch_at=at + 240)


RULE = Rule(
    code="DL113",
    name="per-sample-small-h2d",
    class_="data_loading",
    summary="The batch is sent to the device in many small copies.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches"}),
    evidence="T",
    references=("https://docs.pytorch.org/docs/stable/data.html#working-with-collate-fn",),
    examples=(
        Example("32 copies of 4 KiB in a step of 2 ms", _one_by_one, fires=True),
        Example("four copies in a step", _a_few, fires=False),
    ),
)
