"""The batch is sent to the device in many small copies.

## What it finds
Ten or more copies to the device in each step, issued by one function, that are small: below 64 KiB,
or waited for by the host, which spends more than twice the time of the transfer on each call.

## Why it matters
A small copy costs the same few microseconds of host time and of latency as a large one, and from
pageable memory each one makes the host wait. A batch of 256 samples sent one by one costs 256 times
that. So does a table that is sent column by column, though each column may have 64 KiB and more.

## How to fix it
Put the samples into one tensor in `collate_fn` and copy that once. Ragged samples: concatenate them
and send the offsets along, or pad. Columns of one type: keep them as one table. Constants (means,
masks, anchors) belong on the device from the start: `register_buffer`.

## Limits
A handful of tensors per batch is normal and stays below the border. The recording does not show
which copies carry samples and which carry constants. At worst collecting them on the host takes
as long as before, a copy in the host's memory for each sample into a tensor that is new in each
step: then nothing is gained, and a buffer that is kept (pinned) or `collate_fn` is the better way.
The likely gain is that of data which lie together already, copied from pageable memory at once; the
best one of such data in pinned memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Intervals, measure, merge
from kinetoscope.metrics.transfers import Purpose, Transfers, extent_of, transfers
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Gain
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.data_loading._copies import Mask, blocking
from kinetoscope.rules.data_loading._input import in_window, pinned_speed
from kinetoscope.rules.framework._waiting import loop_bodies
from kinetoscope.units import count, duration, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


_FILLED_BYTES_PER_NS = 0.12
"""At worst, how quickly a new tensor on the host is filled: 0.7 MB took 2 to 6 ms in a recording,
with page faults and torch's threads on a busy machine."""

_FILLED_BY_PIECES = 2.0
"""The same for pieces of 64 KiB and more, each of them one copy in the host's memory: `stack` of
samples on the host wrote 1.5 to 9 bytes a nanosecond in three recordings."""

_PAGEABLE_BYTES_PER_NS = 6.0
"""One copy of it all from pageable memory: 3 to 12 on PCIe 3 to 5 (DL105)."""

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
    most_transfer: float = 0.5
    """From 64 KiB on: the transfer's part of the host time in the copy's operator. Where it is more
    than half, fewer calls help less than a faster transfer does (DL105)."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Count small copies by the function that issues them."""
    copies = analysis.get(transfers)
    mine = in_window(analysis, copies) & _small(analysis, copies, options) & copies.asked
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
            summary="Keep or collect the samples in one tensor on the host and copy it once.",
            snippet="batch = torch.stack(samples)   # in collate_fn; pin_memory=True\n"
            "batch = batch.to(device, non_blocking=True)",
            reference="https://docs.pytorch.org/docs/stable/data.html#working-with-collate-fn",
        ),
        gain=_gain(analysis, copies, mine, (spent, loop), saved),
        confidence=0.7,
        claims=loop,
    )


def _small(analysis: Analysis, copies: Transfers, options: Thresholds) -> Mask:
    """Copies whose call costs more than their bytes do: constants of few bytes left out."""
    owner = np.maximum(np.where(copies.op >= 0, copies.op, copies.call), 0)
    host = analysis.trace.column("dur_ns")[owner] if owner.size else owner
    quick = copies.of(Purpose.DATA) & blocking(copies)
    quick &= copies.ns < options.most_transfer * host
    tiny = copies.of(Purpose.SMALL) & (copies.bytes >= options.min_bytes)
    return np.asarray(tiny | quick)


def _gain(
    analysis: Analysis,
    copies: Transfers,
    mine: Mask,
    host: tuple[Intervals, Intervals],
    saved: float,
) -> Gain:
    """One copy in place of many.

    Cautious: the host collects them first; likely: they lie together in pageable memory; at best:
    in pinned memory, and all of the loop goes.

    Args:
        analysis: of the recording.
        copies: all of its copies.
        mine: the small ones of one function.
        host: host time in their operators, and in the whole loop around them.
        saved: part of the calls that goes away.
    """
    steps, calls = analysis.steps_on_host, copies.calls(mine)
    nbytes, ns = copies.bytes[mine], copies.ns[mine]
    pieces = np.where(copies.of(Purpose.DATA)[mine], _FILLED_BY_PIECES, _FILLED_BYTES_PER_NS)
    fill = int((nbytes / pieces).sum()) // steps
    pageable = int(min(ns.sum(), nbytes.sum() / _PAGEABLE_BYTES_PER_NS)) // steps
    speed, _ = pinned_speed(analysis, copies)
    pinned = min(int(nbytes.sum() / speed * 1e9) // steps, pageable)
    spent, loop = host
    return analysis.gain(
        Change(drop_calls=calls, extra_host_ns=fill + pageable),
        Change(host_cut=spent, host_cut_factor=saved, drop_calls=calls, extra_host_ns=pageable),
        Change(host_cut=loop, host_cut_factor=saved, drop_calls=calls, extra_host_ns=pinned),
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
