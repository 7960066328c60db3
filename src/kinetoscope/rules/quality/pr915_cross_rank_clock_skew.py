"""The ranks' clocks cannot be brought together.

## What it finds
After aligning the ranks by the ends of their common collectives, these ends still lie more than
1 ms apart.

## Why it matters
All ranks leave an all-reduce together. When their recordings disagree about that, comparisons of
arrival times, and who waits for whom, are uncertain.

## How to fix it
Record the same steps on all ranks with a current torch, and synchronise the hosts' clocks.

## Limits
Recordings with coarse time stamps look like this as well. Collectives on the processor (Gloo) end
when the scheduler gives a thread a core: ends within 15 % of a step are not reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.analysis.job import trusted
from kinetoscope.result import Evidence
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.quality._notice import notice
from kinetoscope.units import duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

REFERENCE = "https://docs.pytorch.org/docs/stable/notes/ddp.html"


class Thresholds(Options, frozen=True):
    """When to speak."""

    max_residual_ns: int = 1_000_000
    """Distance of the ends after alignment; collectives end within microseconds."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """The ranks' clocks cannot be brought together."""
    matches = analysis.matches
    if matches.count == 0 or matches.residual_ns < options.max_residual_ns:
        return
    if not analysis.comm.on_device and trusted(analysis):
        return
    yield notice(
        f"After aligning the ranks, common collectives still end {duration(matches.residual_ns)} "
        "apart: who waits for whom is uncertain.",
        fix="Record the same steps on all ranks, on hosts with synchronised clocks.",
        reference=REFERENCE,
        evidence=(Evidence("residual", matches.residual_ns, "ns", "derived"),),
        at_least="low",
    )


def _ends(t: TraceBuilder, late: tuple[int, ...]) -> None:
    for step, shift in enumerate(late):
        at = step * 20_000
        t.step(at, 20_000)
        t.all_reduce(at + 100 + shift, 50 + 10 * step, elements=1 << step, launch_at=at + 10)


def _bad(t: TraceBuilder) -> None:
    _ends(t, (0, 0, 0, 0))


def _bad_peer(t: TraceBuilder) -> None:
    _ends(t, (0, 9_000, 3_000, 6_000))


def _good(t: TraceBuilder) -> None:
    _ends(t, (0, 0, 0, 0))


def _good_peer(t: TraceBuilder) -> None:
    _ends(t, (5_000, 5_000, 5_000, 5_000))


RULE = Rule(
    code="PR915",
    name="cross-rank-clock-skew",
    class_="quality",
    summary="Ends of the same collective lie more than 1 ms apart on different ranks.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ranks"}),
    evidence="ST",
    references=(REFERENCE,),
    examples=(
        Example("all-reduces that end 0 to 9 ms apart", _bad, fires=True, peers=(_bad_peer,)),
        Example("clocks that differ by a constant", _good, fires=False, peers=(_good_peer,)),
    ),
)
