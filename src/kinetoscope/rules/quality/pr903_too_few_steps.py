"""Too few steps were recorded to know how much they vary.

## What it finds
Fewer than three steady steps.

## Why it matters
With one or two steps there is no spread, so no range of the step time, and what happens every
few steps (logging, a slow batch) stays unseen.

## How to fix it
Record at least three steps with stacks to find places, and ten without to measure.

## Limits
Steps of many seconds need not be many.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.result import Evidence
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.quality._examples import healthy
from kinetoscope.rules.quality._notice import notice
from kinetoscope.units import plural

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

REFERENCE = "https://docs.pytorch.org/tutorials/recipes/recipes/profiler_recipe.html"


class Thresholds(Options, frozen=True):
    """When to speak."""

    min_steps: int = 3
    """Steady steps that give a spread."""
    long_step_ns: int = 10_000_000_000
    """Steps longer than this may be few."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Too few steps were recorded to know how much they vary."""
    count = len(analysis.times.steady)
    source = analysis.trace.steps.source
    if count >= options.min_steps or source == "whole_trace":
        return
    if analysis.step_ns > options.long_step_ns:
        return
    yield notice(
        f"Only {plural(count, 'steady step')} {'was' if count == 1 else 'were'} recorded: little "
        "is known about the spread.",
        fix="Record at least three steps, ten to see rare events.",
        snippet="schedule=torch.profiler.schedule(wait=1, warmup=3, active=10)",
        reference=REFERENCE,
        evidence=(Evidence("steady_steps", count, "count"),),
    )


def _bad(t: TraceBuilder) -> None:
    healthy(t, steps=1)


def _good(t: TraceBuilder) -> None:
    healthy(t, steps=4)


RULE = Rule(
    code="PR903",
    name="too-few-steps",
    class_="quality",
    summary="Fewer than three steady steps were recorded.",
    check=check,
    options=Thresholds(),
    evidence="S",
    references=(REFERENCE,),
    examples=(
        Example("one step", _bad, fires=True),
        Example("a healthy recording", _good, fires=False),
    ),
)
