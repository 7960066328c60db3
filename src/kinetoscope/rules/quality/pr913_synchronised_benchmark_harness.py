"""The recording was made by a loop that waits for the device at the end of each step.

## What it finds
Exactly one explicit synchronisation a step, at the border between two steps, and no other wait.

## Why it matters
Such a loop measures one step well, but host and device cannot overlap across steps. The real
program, without the wait, may be faster, and more of its host time is hidden.

## How to fix it
Record the real loop, or wait only before the first and after the last step.

## Limits
A preview. A program that really needs the wait looks the same; FW505 says what it costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.waits import Wait
from kinetoscope.result import Evidence
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.quality._notice import notice

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

REFERENCE = "https://docs.pytorch.org/tutorials/recipes/recipes/benchmark.html"


class Thresholds(Options, frozen=True):
    """What is a harness."""

    min_steps: int = 3
    """Steps that end so."""
    border: float = 0.05
    """Distance between the end of the wait and the end of the step, as a share of the step."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Look at all waits of the steady steps."""
    trace, waits = analysis.trace, analysis.waits
    ts, dur = trace.column("ts_ns"), trace.column("dur_ns")
    low, high = analysis.times.host_window
    inside = (ts[waits.call] >= low) & (ts[waits.call] < high)
    calls, reasons = waits.call[inside], waits.reason[inside]
    steps = analysis.steps_on_host
    if steps < options.min_steps or calls.size != steps or (reasons != Wait.EXPLICIT).any():
        return
    edges = trace.steps.edges
    step = trace.steps.of(ts[calls])
    if np.unique(step).size != steps:
        return
    length = np.diff(edges)[step]
    late = edges[step + 1] - (ts + dur)[calls] <= options.border * length
    if not late.all():
        return
    yield notice(
        "Each step ends with a wait for the device and holds no other: a benchmark's loop, in "
        "which steps cannot overlap.",
        fix="Record the real loop, or wait only before the first and after the last step.",
        reference=REFERENCE,
        evidence=(Evidence("waits_per_step", 1, "count"),),
        confidence=0.7,
    )


def _loop(t: TraceBuilder, *, at_the_end: bool) -> None:
    for step in range(5):
        at = step * 2_000.0
        t.step(at, 2_000)
        t.kernel("gemm", at + 30, 1_900, launch_at=at + 10)
        if at_the_end:
            t.sync(at + 40, 1_950, name="cudaDeviceSynchronize")
    t.kernel("last", 10_030, 10, launch_at=10_010)


def _harness(t: TraceBuilder) -> None:
    _loop(t, at_the_end=True)


def _free(t: TraceBuilder) -> None:
    _loop(t, at_the_end=False)


RULE = Rule(
    code="PR913",
    name="synchronised-benchmark-harness",
    class_="quality",
    summary="Each step ends with a wait for the device, as in a benchmark.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "steps"}),
    evidence="L",
    references=(REFERENCE,),
    examples=(
        Example("a device synchronisation at the end of each step", _harness, fires=True),
        Example("steps that run into each other", _free, fires=False),
    ),
    preview=True,
)
