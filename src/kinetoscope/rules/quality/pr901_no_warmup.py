"""The first recorded step is still warming up.

## What it finds
The first recorded step takes more than twice as long as the median of the others.

## Why it matters
Allocator, library handles, autotuning and compilation are paid once. In a short recording they
distort every average.

## How to fix it
Let the profiler wait and warm up: `schedule(wait=1, warmup=3, active=5)`.

## Limits
The analysis leaves such a step out by itself. A first step that differs for another reason (an
epoch begins) looks the same. `kinetoscope run` warms up before it records, so in its recordings a
long first step is the program's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.result import Evidence
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.quality._examples import healthy, launch
from kinetoscope.rules.quality._notice import notice
from kinetoscope.units import times

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

REFERENCE = "https://docs.pytorch.org/tutorials/recipes/recipes/profiler_recipe.html"


class Thresholds(Options, frozen=True):
    """When to speak."""

    min_ratio: float = 2.0
    """Length of the first step over the median of the others."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """The first recorded step is still warming up."""
    lengths = np.diff(analysis.trace.steps.edges)
    if lengths.size < 3 or analysis.trace.sidecar is not None:
        return
    if analysis.times.steady[0] == 0:
        return  # a later step is as long: it comes back, and is not left out
    ratio = float(lengths[0] / max(np.median(lengths[1:]), 1))
    if ratio < options.min_ratio:
        return
    yield notice(
        f"The first recorded step takes {times(ratio)} as long as the others and is left out.",
        fix="Let the profiler warm up for three steps before it records.",
        snippet="schedule=torch.profiler.schedule(wait=1, warmup=3, active=5)",
        reference=REFERENCE,
        evidence=(Evidence("first_over_median", round(ratio, 2), "ratio", "derived"),),
        at_least="low",
    )


def _bad(t: TraceBuilder) -> None:
    for step, (at, length) in enumerate(
        ((0, 4_000), (4_000, 1_000), (5_000, 1_000), (6_000, 1_000))
    ):
        t.step(at, length, number=step)
        launch(t, at)


def _good(t: TraceBuilder) -> None:
    healthy(t, steps=4)


RULE = Rule(
    code="PR901",
    name="no-warmup",
    class_="quality",
    summary="The first recorded step is much longer than the others.",
    check=check,
    options=Thresholds(),
    evidence="T",
    references=(REFERENCE,),
    examples=(
        Example("the first of four steps is four times as long", _bad, fires=True),
        Example("a healthy recording", _good, fires=False),
    ),
)
