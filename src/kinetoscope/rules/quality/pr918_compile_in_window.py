"""The first recorded steps compile.

## What it finds
A compiler at work in the first recorded steps, for at least 5 % of their time, and not in the
later ones.

## Why it matters
Compilation is paid once. It says nothing about the steps that follow.

## How to fix it
Warm up until nothing compiles any more, then record.

## Limits
Compilation that goes on in the later steps is another finding.
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
from kinetoscope.units import duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

REFERENCE = "https://docs.pytorch.org/docs/stable/torch.compiler.html"


class Thresholds(Options, frozen=True):
    """When to speak."""

    min_share: float = 0.05
    """Compile time over the length of the first half of the steps."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """The first recorded steps compile."""
    edges = analysis.trace.steps.edges
    if analysis.trace.steps.count < 2:
        return
    middle = edges[(edges.size - 1) // 2]
    compiling = analysis.extent(analysis.rows(Kind.COMPILE))
    early = measure(clip(compiling, int(edges[0]), int(middle)))
    late = measure(clip(compiling, int(middle), int(edges[-1])))
    if early < options.min_share * int(middle - edges[0]) or late > 0.1 * early:
        return
    yield notice(
        f"The first recorded steps compile for {duration(early)}; the later ones do not.",
        fix="Warm up until nothing compiles any more, then record.",
        snippet="schedule=torch.profiler.schedule(wait=5, warmup=3, active=5)",
        reference=REFERENCE,
        evidence=(Evidence("compiling", early, "ns"),),
        at_least="low",
    )


def _bad(t: TraceBuilder) -> None:
    healthy(t, steps=4)
    t.annotation("_compile.compile_inner (dynamo_timed)", 400, 500)


def _good(t: TraceBuilder) -> None:
    healthy(t, steps=4)


RULE = Rule(
    code="PR918",
    name="compile-in-window",
    class_="quality",
    summary="The first recorded steps compile; later ones do not.",
    check=check,
    options=Thresholds(),
    evidence="TE",
    references=(REFERENCE,),
    examples=(
        Example("500 µs of compilation in the first of four steps", _bad, fires=True),
        Example("a healthy recording", _good, fires=False),
    ),
)
