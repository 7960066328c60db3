"""Batches lie in pinned memory, and the host waits for each copy all the same.

## What it finds
Copies from pinned memory to the device whose operator also holds a `cudaStreamSynchronize`: `.to()`
without `non_blocking=True`.

## Why it matters
The wait ends only when the copy has, and the copy starts only when all kernels queued before it are
done. So the host loses the lead it had over the device, and the device runs dry right after the
copy.

## How to fix it
`batch.to(device, non_blocking=True)`. Kernels that use the batch are ordered after the copy by the
stream; the host need not wait.

## Limits
Whoever writes into the pinned buffer right after the call must wait, with an event, until the copy
is done; a DataLoader hands out new buffers and has no such problem. Where the host is far behind or
far ahead of the device anyway, the wait costs nothing, and the rule keeps quiet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import measure
from kinetoscope.metrics.transfers import Purpose, transfers
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.data_loading._copies import blocking_calls
from kinetoscope.rules.data_loading._input import in_window
from kinetoscope.trace.kinds import CopyKind
from kinetoscope.units import duration, plural

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When blocking copies are worth a word."""

    min_share: float = 0.01
    """Time that the host spends waiting for them, as a share of the step."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find pinned copies with a wait after them, and let the replay drop the wait."""
    copies = analysis.get(transfers)
    mine = in_window(analysis, copies) & copies.of(Purpose.DATA, Purpose.SMALL)
    mine &= (copies.kind == CopyKind.H2D_PINNED) & (copies.sync >= 0)
    if not mine.any():
        return
    calls = blocking_calls(analysis, copies, mine)
    waiting = analysis.extent(calls)
    share = measure(waiting) / (analysis.step_ns * analysis.steps_on_host)
    if share < options.min_share:
        return
    each = int(mine.sum()) / analysis.steps_on_host
    yield Hit(
        message=f"The host waits {duration(measure(waiting) // analysis.steps_on_host)} of each "
        f"step for {plural(max(round(each), 1), 'copy', 'copies')} from pinned memory, which need "
        "no waiting.",
        evidence=(
            Evidence("wait_per_step", measure(waiting) // analysis.steps_on_host, "ns"),
            Evidence("wait_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("copies_per_step", round(each, 1), "count"),
        ),
        locations=analysis.locations(copies.row[mine], calls=("to", "cuda", "copy_")),
        fix=Fix(
            summary="Copy without blocking: the stream keeps the order.",
            snippet="batch = batch.to(device, non_blocking=True)",
            reference="https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
        ),
        gain=analysis.gain(Change(unblock=copies.sync[mine]), Change(unblock=calls)),
        confidence=0.9,
        claims=waiting,
        at_most="medium",
    )


def _step(t: TraceBuilder, at: int, *, wait: bool) -> None:
    t.step(at, 10_000)
    t.op("aten::to", at + 10, 3_030 if wait else 20)
    t.copy("HtoD Pinned", 150_000_000, at + 30, 3_000, launch_at=at + 15)
    if wait:
        t.sync(at + 22, 3_012)
    begin = at + 3_050 if wait else at + 40
    for i in range(60):
        start = begin + 100 * i
        t.kernel("gemm", max(start + 10, at + 3_040 + 60 * i), 58, launch_at=start)


def _waits(t: TraceBuilder) -> None:
    for step in range(4):
        _step(t, step * 10_000, wait=True)


def _goes_on(t: TraceBuilder) -> None:
    for step in range(4):
        _step(t, step * 10_000, wait=False)


RULE = Rule(
    code="DL106",
    name="pinned-but-blocking-h2d",
    class_="data_loading",
    summary="The host waits for copies from pinned memory that need no waiting.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches"}),
    evidence="S",
    remedies=("pin-memory",),
    references=("https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",),
    examples=(
        Example("a wait of 3 ms in front of a launch-bound step", _waits, fires=True),
        Example("the same copy with non_blocking=True", _goes_on, fires=False),
    ),
)
