"""Only some of the ranks were given.

## What it finds
The recording says that the job had more ranks than there are files.

## Why it matters
A rank that waits for a slow peer and a rank on a slow network look the same. In a healthy job of
two, one rank showed 66 % exposed communication and the other 6 %; the transfer itself took 8 %.

## How to fix it
Record the same steps on all ranks, or one a node, and pass the folder.

## Limits
Ranks that do not communicate need no peers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import measure
from kinetoscope.result import Evidence
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.quality._examples import healthy
from kinetoscope.rules.quality._notice import notice

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

REFERENCE = "https://docs.pytorch.org/docs/stable/notes/ddp.html"


class Thresholds(Options, frozen=True):
    """When to speak."""

    much: float = 0.05
    """Exposed communication from which on the difference matters."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Only some of the ranks were given."""
    world, given = analysis.trace.header.world_size or 1, len(analysis.ranks)
    if world <= given or analysis.comm.row.size == 0:
        return
    device = analysis.device
    exposed = measure(device.within(*analysis.times.window).exposed_comm) if device else 0
    matters = exposed >= options.much * analysis.step_ns * analysis.steps
    yield notice(
        f"{given} of {world} ranks {'was' if given == 1 else 'were'} given: waiting for a peer "
        "and a slow network cannot be told apart.",
        fix="Record the same steps on every rank and analyze the folder.",
        snippet="kinetoscope analyze TRACES/",
        reference=REFERENCE,
        evidence=(Evidence("ranks_given", given, "count"), Evidence("ranks", world, "count")),
        at_least="low" if matters else "info",
    )


def _bad(t: TraceBuilder) -> None:
    t.header(distributedInfo={"backend": "nccl", "rank": 0, "world_size": 2})
    healthy(t, steps=4)
    t.all_reduce(3_950, 20, launch_at=3_940)


def _good(t: TraceBuilder) -> None:
    healthy(t, steps=4)


RULE = Rule(
    code="PR910",
    name="single-rank-view",
    class_="quality",
    summary="Only some ranks were given: waiting and slow transfer cannot be told apart.",
    check=check,
    options=Thresholds(),
    evidence="T",
    references=(REFERENCE,),
    examples=(
        Example("one rank of two", _bad, fires=True),
        Example("a healthy recording", _good, fires=False),
    ),
)
