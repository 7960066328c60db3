"""The device timeline has holes, or the file is cut short.

## What it finds
Launches whose kernels are missing, replayed graphs with far fewer kernels than their likes, or
events lost from a damaged file.

## Why it matters
Missing kernels look like an idle device. Every statement about idle time depends on them.

## How to fix it
Record fewer steps, without memory events, and let the profiler write its file to the end before
the process exits. Close other profilers.

## Limits
A call that launches nothing by design counts as missing; up to 2 % are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.result import Damage, Evidence
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.quality._examples import healthy, launch
from kinetoscope.rules.quality._notice import notice
from kinetoscope.units import percent, plural

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

REFERENCE = "https://docs.pytorch.org/docs/stable/profiler.html"


class Thresholds(Options, frozen=True):
    """When to speak."""

    min_ratio: float = 0.98
    """Part of the launches that must have a device event."""
    complete: float = 0.9
    """Below this, idle time means nothing."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """The device timeline has holes, or the file is cut short."""
    coverage = analysis.coverage
    lost = [d for d in analysis.trace.damage if d.lossy]
    if lost:
        yield notice(
            _lost(lost),
            fix="Record again and let the profiler finish its file before the process ends.",
            reference=REFERENCE,
            at_least="low",
        )
    if coverage.sparse_replays:
        yield notice(
            f"{plural(coverage.sparse_replays, 'graph replay')} recorded far fewer kernels than "
            "the others: idle time there may be missing data.",
            fix="Record fewer steps, or upgrade torch and the driver.",
            reference=REFERENCE,
            evidence=(Evidence("sparse_replays", coverage.sparse_replays, "count"),),
            at_least="medium",
        )
    if coverage.launches < 10 or coverage.ratio >= options.min_ratio or not coverage.events:
        return
    yield notice(
        f"Only {percent(coverage.ratio)} of the launches have a device event: idle time may be "
        "missing data.",
        fix="Record fewer steps, close other profilers, and stop the profiler inside the program.",
        reference=REFERENCE,
        evidence=(Evidence("launches_with_events", round(coverage.ratio, 4), "ratio"),),
        at_least="low" if coverage.ratio >= options.complete else "high",
    )


def _lost(damage: Sequence[Damage]) -> str:
    """What is missing: of a file that is cut off, nobody knows how much."""
    told = [d for d in damage if not d.kind.startswith("truncated")]
    kinds = ", ".join(d.kind.replace("_", " ") for d in told)
    number = plural(sum(d.count for d in told), "event")
    broken = f"{number} could not be read ({kinds})." if told else ""
    cut = "The file is cut off: what came after is lost." if len(told) < len(damage) else ""
    return " ".join(part for part in (cut, broken) if part)


def _bad(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 1_000
        t.step(at, 1_000)
        for i in range(4):
            t.runtime("cudaLaunchKernel", at + 20 + 100 * i, 5)
            launch(t, at + 60 + 100 * i)


def _good(t: TraceBuilder) -> None:
    healthy(t, steps=4)


RULE = Rule(
    code="PR905",
    name="dropped-or-truncated-events",
    class_="quality",
    summary="Device events are missing, or the file is damaged.",
    check=check,
    options=Thresholds(),
    evidence="ST",
    references=(REFERENCE,),
    examples=(
        Example("half of the launches without a kernel", _bad, fires=True),
        Example("a healthy recording", _good, fires=False),
    ),
)
