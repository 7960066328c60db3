"""Device work of earlier steps lies in the recording.

## What it finds
At least 5 % of the device events were launched before the first recorded step.

## Why it matters
When the device limits the program, the host runs ahead by up to a thousand launches. Dividing all
kernel time by the number of recorded steps then gives up to 1.7 times too much per step.

## How to fix it
Nothing: work is assigned to the step that launched it. In your own scripts, do the same.

## Limits
Kernels without a launch record for another reason count, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.result import Evidence
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.quality._examples import healthy
from kinetoscope.rules.quality._notice import notice
from kinetoscope.units import percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

REFERENCE = "https://docs.pytorch.org/docs/stable/profiler.html"


class Thresholds(Options, frozen=True):
    """When to speak."""

    min_share: float = 0.05
    """Part of the device events."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Device work of earlier steps lies in the recording."""
    times = analysis.times
    share = times.orphan_rows.size / max(times.device_rows.size, 1)
    if share < options.min_share or not analysis.has("launches"):
        return
    yield notice(
        f"{percent(share)} of the device events were launched before the recorded steps; they "
        "count for the device's time, not for the steps' work.",
        fix="Nothing to do here. A tool that divides all kernel time by the number of steps "
        "overstates a step by as much.",
        reference=REFERENCE,
        evidence=(Evidence("launched_before", round(share, 4), "ratio"),),
    )


def _bad(t: TraceBuilder) -> None:
    t.kernel("gemm", 5, 400)
    t.kernel("gemm", 410, 400)
    healthy(t, steps=4, start=1_000)


def _good(t: TraceBuilder) -> None:
    healthy(t, steps=4)


RULE = Rule(
    code="PR909",
    name="work-outside-steps",
    class_="quality",
    summary="Device events launched before the recorded steps are in the recording.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device"}),
    evidence="T",
    references=(REFERENCE,),
    examples=(
        Example("one kernel in three from before", _bad, fires=True),
        Example("a healthy recording", _good, fires=False),
    ),
)
