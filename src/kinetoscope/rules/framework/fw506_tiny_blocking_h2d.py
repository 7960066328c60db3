"""Constants are copied to the device one by one, and the host waits for each copy.

## What it finds
Several copies of at most 64 KiB to the device in each step that the program asked for
(`torch.tensor(x).cuda()`, `.to(device)`), each of which blocks the host.

## Why it matters
A copy from pageable memory returns only when it is done, and it is done only when everything
before it on the stream is. A scalar then costs the host 30 to 50 µs at least, and it cannot run
ahead of the device any more.

## How to fix it
Create constants on the device: `torch.full((), value, device=device)`. Keep those that never
change as buffers of the module. Send several values as one tensor.

## Limits
Copies of a batch belong to data loading, many samples of one batch to DL113, tensors that a factory
of torch made to FW520. A handful of small copies a step is normal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import measure
from kinetoscope.metrics.transfers import Purpose, extent_of, transfers
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.data_loading._copies import blocking
from kinetoscope.rules.data_loading._input import in_window
from kinetoscope.units import count, duration, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_LAUNCH_NS = 8_000
"""Host time of the operator that fills a constant on the device instead."""


class Thresholds(Options, frozen=True):
    """When small copies are worth a word."""

    min_copies: int = 5
    """Blocking copies in a step."""
    min_share: float = 0.01
    """Host time in them as a share of the step."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Count small copies that block, and replay the steps without them."""
    copies = analysis.get(transfers)
    mine = in_window(analysis, copies) & copies.of(Purpose.SMALL) & copies.asked
    mine &= blocking(copies) & ~copies.made
    each = int(mine.sum()) / analysis.steps_on_host
    if each < options.min_copies:
        return
    owner = np.where(copies.op >= 0, copies.op, copies.call)[mine]
    spent = extent_of(analysis.trace, owner)
    steps = analysis.steps_on_host
    if measure(spent) < options.min_share * analysis.step_ns * steps:
        return
    calls, extra = copies.calls(mine), int(_LAUNCH_NS * each)
    yield Hit(
        message=(
            f"{count(round(each))} constants of {size(float(np.median(copies.bytes[mine])))} are "
            f"copied to the device in each step, and the host waits for each: "
            f"{duration(measure(spent) // steps)} a step."
        ),
        evidence=(
            Evidence("copies_per_step", round(each, 1), "count"),
            Evidence("median_size", int(np.median(copies.bytes[mine])), "bytes"),
            Evidence("host_time", measure(spent) // steps, "ns"),
        ),
        locations=analysis.locations(
            copies.row[mine], calls=("tensor", "to", "cuda", "as_tensor", "copy_")
        ),
        fix=Fix(
            summary="Create constants on the device, keep those that do not change, and send the "
            "rest as one tensor.",
            snippet="scale = torch.full((), value, device=x.device)\n"
            'self.register_buffer("mean", torch.tensor(mean))   # moved once',
            reference="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
            "#create-tensors-directly-on-the-target-device",
        ),
        gain=analysis.gain(
            Change(unblock=calls, host_cut=spent, host_cut_factor=0.3),
            Change(drop_calls=calls, host_cut=spent, extra_host_ns=extra),
            Change(drop_calls=calls, host_cut=spent),
        ),
        confidence=0.9,
        claims=spent,
        at_most="medium",
    )


def _constants(t: TraceBuilder, *, number: int, kind: str) -> None:
    for step in range(4):
        at = step * 2_000.0
        t.step(at, 2_000)
        for i in range(number):
            begin = at + 10 + i * 100
            t.op("aten::to", begin, 50)
            t.copy(kind, 4, begin + 12, 2, launch_at=begin + 5, launch_dur=10)
            if "Pageable" in kind:
                t.sync(begin + 20, 25)
            t.kernel("elementwise_kernel", begin + 70, 20, launch_at=begin + 60)


def _waits(t: TraceBuilder) -> None:
    _constants(t, number=15, kind="HtoD Pageable")


def _does_not_wait(t: TraceBuilder) -> None:
    _constants(t, number=15, kind="HtoD Pinned")


RULE = Rule(
    code="FW506",
    name="tiny-blocking-h2d",
    class_="framework",
    summary="Constants are copied to the device one by one, and the host waits for each.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "ops"}),
    references=("https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",),
    examples=(
        Example("fifteen scalars from pageable memory", _waits, fires=True),
        Example("fifteen from pinned memory, without waiting", _does_not_wait, fires=False),
    ),
)
