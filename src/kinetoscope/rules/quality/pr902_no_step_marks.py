"""The recording has no step marks.

## What it finds
No `ProfilerStep#n` ranges. Steps come from an annotation, from replayed graphs, from a repeating
sequence, or cannot be found at all.

## Why it matters
All numbers are per step. When steps are guessed, or the whole recording counts as one, so are they.

## How to fix it
Call `prof.step()` at the end of each iteration, with or without a schedule.

## Limits
A server that answers requests has no steps; its own annotations serve as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.quality._examples import healthy, launch
from kinetoscope.rules.quality._notice import notice

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

REFERENCE = "https://docs.pytorch.org/docs/stable/profiler.html"


class Thresholds(Options, frozen=True):
    """When to speak."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """The recording has no step marks."""
    del options
    steps = analysis.trace.steps
    if steps.source == "profiler_step" or analysis.trace.cut_off:
        return  # the marks of a file that is cut off may have stood in what is lost: PR905
    if steps.source == "whole_trace":
        message = "No steps were found: the whole recording counts as one step."
    else:
        message = f"Steps were not marked; they are taken from `{steps.name}`."
    yield notice(
        message,
        fix="Call prof.step() at the end of each iteration.",
        snippet="with torch.profiler.profile(...) as prof:\n    for batch in loader:\n"
        "        train_step(batch)\n        prof.step()",
        reference=REFERENCE,
        at_least="low" if steps.source == "whole_trace" else "info",
    )


def _bad(t: TraceBuilder) -> None:
    launch(t, 0)
    launch(t, 1_000)


def _good(t: TraceBuilder) -> None:
    healthy(t, steps=4)


RULE = Rule(
    code="PR902",
    name="no-step-marks",
    class_="quality",
    summary="The recording has no ProfilerStep marks.",
    check=check,
    options=Thresholds(),
    evidence="ST",
    references=(REFERENCE,),
    examples=(
        Example("two kernels and no marks", _bad, fires=True),
        Example("a healthy recording", _good, fires=False),
    ),
)
