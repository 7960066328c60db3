"""Every step allocates pinned host memory.

## What it finds
`cudaHostAlloc`, `cudaMallocHost` or `cudaHostRegister` within steady steps, for 1 % of the step
or more.

## Why it matters
Pinning asks the operating system to lock pages and maps them for the device: a tenth of a
millisecond to several for each call, and some of them wait for the device. The thread that
launches does nothing else meanwhile.

## How to fix it
Pin once and copy into the same buffer (`buffer.copy_(x)`), or let `DataLoader(pin_memory=True)`
do it in its own thread. `PYTORCH_ALLOC_CONF=pinned_use_background_threads:True` moves what is
left.

## Limits
The cache of pinned memory fills in the first steps; only steady steps count. Calls on a thread
that launches nothing are hidden.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.memory._allocator import steps_with
from kinetoscope.trace.frames import is_pinning_call
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_PINNING = "https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html"


class Thresholds(Options, frozen=True):
    """When pinning is worth a word."""

    min_share: float = 0.01
    """Time of the calls as a share of the step (RULES, MM314)."""
    min_steps: float = 0.6
    """Share of the steady steps after the first one with such a call."""
    removed: tuple[float, float] = (0.8, 1.0)
    """Part of the calls that goes: a new shape may need a new buffer."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find the calls on launching threads and replay without them."""
    rows = analysis.in_steps(analysis.matching(is_pinning_call))
    rows = rows[np.isin(analysis.trace.column("thread")[rows], analysis.model.host_threads)]
    if rows.size == 0 or steps_with(analysis, rows) < options.min_steps:
        return
    spent = analysis.extent(rows)
    per_step = measure(spent) // analysis.steps_on_host
    share = per_step / max(analysis.step_ns, 1)
    if share < options.min_share:
        return
    each = rows.size / analysis.steps_on_host
    low, high = options.removed
    yield Hit(
        message=(
            f"Each step pins host memory anew: {count(round(each, 1))} calls, "
            f"{duration(per_step)} of the launching thread "
            f"({percent(min(share, 1.0))} of the step)."
        ),
        evidence=(
            Evidence("calls_per_step", round(each, 1), "count"),
            Evidence("time_per_step", per_step, "ns"),
        ),
        locations=analysis.locations(rows, calls=("pin_memory",)),
        fix=Fix(
            summary="Pin one buffer and copy into it, or let the DataLoader pin.",
            snippet="staging = torch.empty(shape, pin_memory=True)  # once\n"
            "staging.copy_(x); y.copy_(staging, non_blocking=True)",
            reference=_PINNING,
        ),
        gain=analysis.gain(
            Change(host_cut=spent, host_cut_factor=low),
            Change(host_cut=spent, host_cut_factor=high),
        ),
        confidence=0.9,
        claims=spent,
    )


def _pinning(t: TraceBuilder, *, always: bool) -> None:
    for step in range(5):
        at = step * 3_000
        t.step(at, 2_990)
        if always or step == 0:
            t.op("aten::pin_memory", at + 10, 1_500)
            t.runtime("cudaHostAlloc", at + 20, 1_200)
        t.op("aten::mm", at + 1_520, 20, dims=[[2048, 2048], [2048, 2048]])
        t.kernel("gemm", at + 1_540, 1_200, launch_at=at + 1_525)
        t.sync(at + 1_550, 1_200)


def _always(t: TraceBuilder) -> None:
    _pinning(t, always=True)


def _once(t: TraceBuilder) -> None:
    _pinning(t, always=False)


RULE = Rule(
    code="MM314",
    name="host-pinned-alloc-in-loop",
    class_="memory",
    summary="Every step allocates pinned host memory.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"launches"}),
    evidence="S",
    references=(_PINNING,),
    examples=(
        Example("1.2 ms of cudaHostAlloc in every step", _always, fires=True),
        Example("once, in the first step", _once, fires=False),
    ),
)
