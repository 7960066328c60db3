"""The steps differ a lot in length.

## What it finds
The standard deviation of the steady steps is more than 20 % of their mean.

## Why it matters
A gain of the size of the spread cannot be seen in one measurement, and the median step may not be
typical: sequence lengths, evaluation, checkpoints, waiting for input.

## How to fix it
Record more steps; keep inputs of equal size, or compare time per token or sample.

## Limits
Three steps say little about variance. Where a finding explains most of the long steps, such as
checkpoints, a new epoch's workers, compilation or garbage collection, this one is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Intervals, union
from kinetoscope.result import Evidence
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.quality._examples import healthy, launch
from kinetoscope.rules.quality._notice import notice
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

REFERENCE = "https://docs.pytorch.org/docs/stable/profiler.html"


_LONG = 1.5
"""Times the median length; such a step is not noise."""


class Thresholds(Options, frozen=True):
    """When to speak."""

    min_cv: float = 0.2
    """Standard deviation over mean; below, noise of a shared machine."""
    min_periods: int = 3
    """Periods needed for a spread."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """The steps differ a lot in length."""
    times = analysis.times
    periods = times.device_periods if times.device_bound else times.host_periods
    if periods.size < options.min_periods or times.cv < options.min_cv:
        return
    yield notice(
        f"The steps vary by {percent(times.cv)} ({duration(int(periods.min()))} to "
        f"{duration(int(periods.max()))}).",
        fix="Record more steps before judging small gains.",
        snippet="schedule=torch.profiler.schedule(wait=1, warmup=3, active=20)",
        reference=REFERENCE,
        evidence=(Evidence("variation", round(times.cv, 4), "ratio", "derived"),),
        claims=_long_steps(analysis),
    )


def _long_steps(analysis: Analysis) -> Intervals:
    """The steps that are longer than usual, on the host: what explains them explains the spread."""
    edges = analysis.trace.steps.edges
    length = np.diff(edges)
    long = np.flatnonzero(length > _LONG * np.median(length)) if length.size else length
    return union(edges[long], edges[long + 1])


def _bad(t: TraceBuilder) -> None:
    at = 0
    for length in (1_000, 2_000, 1_000, 2_000):
        t.step(at, length)
        launch(t, at)
        at += length


def _good(t: TraceBuilder) -> None:
    healthy(t, steps=4)


RULE = Rule(
    code="PR908",
    name="high-step-variance",
    class_="quality",
    summary="The recorded steps differ a lot in length.",
    check=check,
    options=Thresholds(),
    evidence="T",
    references=(REFERENCE,),
    examples=(
        Example("steps of 1, 2, 1 and 2 ms", _bad, fires=True),
        Example("a healthy recording", _good, fires=False),
    ),
)
