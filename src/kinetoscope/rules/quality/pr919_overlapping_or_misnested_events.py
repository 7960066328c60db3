"""Host events of one thread overlap without nesting.

## What it finds
At least 1 % of the host events begin inside another one and end after it.

## Why it matters
A thread does one thing at a time. Crossing events come from faulty recordings, and self times and
call trees are then uncertain.

## How to fix it
Upgrade torch; events of asynchronous operations should stand on threads of their own.

## Limits
Differences of up to 2 µs are rounding.
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

REFERENCE = "https://github.com/pytorch/kineto"


class Thresholds(Options, frozen=True):
    """When to speak."""

    tolerance_ns: int = 2_000
    """Rounding."""
    min_share: float = 0.01
    """Part of the host events."""
    min_count: int = 20
    """Fewer do no harm."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Host events of one thread overlap without nesting."""
    tree, slack = analysis.trace.tree, options.tolerance_ns
    start, end, thread = tree.start, tree.end, tree.thread
    inside = (thread[1:] == thread[:-1]) & (end[:-1] > start[1:] + slack)
    crossing = int((inside & (end[:-1] < end[1:] - slack)).sum())
    if crossing < max(options.min_count, options.min_share * start.size):
        return
    yield notice(
        f"{percent(crossing / start.size)} of the host events overlap others of their thread "
        "without nesting: call trees are uncertain.",
        fix="Upgrade torch and record again.",
        reference=REFERENCE,
        evidence=(Evidence("crossing_events", crossing, "count"),),
    )


def _bad(t: TraceBuilder) -> None:
    for i in range(40):
        t.op("aten::a", 100 * i, 50)
        t.op("aten::b", 100 * i + 20, 60)
    healthy(t, steps=4)


def _good(t: TraceBuilder) -> None:
    healthy(t, steps=4)


RULE = Rule(
    code="PR919",
    name="overlapping-or-misnested-events",
    class_="quality",
    summary="Host events of one thread overlap without nesting.",
    check=check,
    options=Thresholds(),
    evidence="T",
    references=(REFERENCE,),
    examples=(
        Example("forty pairs of crossing operators", _bad, fires=True),
        Example("a healthy recording", _good, fires=False),
    ),
)
