"""The profiler handled its own buffers during the recorded steps.

## What it finds
`Buffer Flush`, `Activity Buffer Request`, lazy loading of functions: together at least 1 % of the
recorded steps.

## Why it matters
They stop the host now and then, and look like gaps of the program.

## How to fix it
Warm up the profiler for a few steps, and record fewer steps at a time.

## Limits
Only what the profiler itself reports is counted; the cost of recording each event is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import clip, measure
from kinetoscope.result import Evidence
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.quality._examples import healthy
from kinetoscope.rules.quality._notice import notice
from kinetoscope.trace.kinds import Kind
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

REFERENCE = "https://docs.pytorch.org/docs/stable/profiler.html"


class Thresholds(Options, frozen=True):
    """When to speak."""

    min_share: float = 0.01
    """Part of the recorded time."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """The profiler handled its own buffers during the recorded steps."""
    low, high = analysis.window
    spent = measure(clip(analysis.extent(analysis.rows(Kind.OVERHEAD)), low, high))
    share = spent / max(high - low, 1)
    if share < options.min_share:
        return
    yield notice(
        f"The profiler's own work takes {duration(spent)}, {percent(share)} of the recorded steps.",
        fix="Warm up the profiler for three steps and record fewer steps at a time.",
        snippet="schedule=torch.profiler.schedule(wait=1, warmup=3, active=5)",
        reference=REFERENCE,
        evidence=(Evidence("overhead", spent, "ns"),),
    )


def _bad(t: TraceBuilder) -> None:
    healthy(t, steps=4)
    t.overhead("Buffer Flush", 1_500, 200)


def _good(t: TraceBuilder) -> None:
    healthy(t, steps=4)


RULE = Rule(
    code="PR912",
    name="profiler-overhead-events-in-window",
    class_="quality",
    summary="The profiler's own work takes a visible part of the recorded steps.",
    check=check,
    options=Thresholds(),
    evidence="T",
    references=(REFERENCE,),
    examples=(
        Example("a buffer flush of 200 µs in 4 ms", _bad, fires=True),
        Example("a healthy recording", _good, fires=False),
    ),
)
