"""Profiling itself slowed the host by more than 10 %.

## What it finds
The modelled cost of the recorded events on the host lengthens the step by at least 10 %.

## Why it matters
A program that the host limits looks slower, and its device more idle, than it is: 1.4 to 6 times
with stacks and shapes. Steps limited by the device are not affected.

## How to fix it
Time the program without the profiler and pass `--real-step-ms`; or record once with light
options for times and once with stacks for places.

## Limits
The model was fitted on one machine; half of its predictions lie within 20 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.result import Evidence
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.quality._examples import healthy, launch
from kinetoscope.rules.quality._notice import notice
from kinetoscope.units import duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

REFERENCE = "https://docs.pytorch.org/docs/stable/profiler.html"


class Thresholds(Options, frozen=True):
    """When to speak."""

    min_ratio: float = 1.1
    """Recorded over likely step time."""
    much: float = 1.5
    """From here on the ranges of gains become wide."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Profiling itself slowed the host by more than 10 %."""
    likely, recorded = analysis.step_time.mid, analysis.step_ns
    ratio = recorded / max(likely, 1)
    if analysis.options.real_step_ns is not None or ratio < options.min_ratio:
        return
    yield notice(
        f"Profiling slowed the host: a step took {duration(recorded)} as recorded, and takes about "
        f"{duration(likely)} without the profiler.",
        fix="Time the program without the profiler and pass the result with --real-step-ms.",
        snippet="kinetoscope analyze TRACE --real-step-ms MILLISECONDS",
        reference=REFERENCE,
        evidence=(
            Evidence("recorded_step", recorded, "ns"),
            Evidence("likely_step", likely, "ns", "estimated"),
        ),
        at_least="low" if ratio >= options.much else "info",
        confidence=0.7,
    )


def _bad(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        for i in range(480):
            t.op("aten::view", at + 20 * i, 10, dims=[[2]])
        launch(t, at + 9_700)


def _good(t: TraceBuilder) -> None:
    healthy(t, steps=4)


RULE = Rule(
    code="PR904",
    name="profiler-perturbation",
    class_="quality",
    summary="The profiler slowed the host; recorded times are upper bounds.",
    check=check,
    options=Thresholds(),
    evidence="T",
    references=(REFERENCE,),
    examples=(
        Example("a step of 500 small operators", _bad, fires=True),
        Example("a healthy recording", _good, fires=False),
    ),
)
