"""Process groups are made while the program trains.

## What it finds
`dist.new_group` and its kin within the recorded steps.

## Why it matters
Making a group, and its first collective, sets up connections between all members: up to seconds,
in which every rank waits. Groups that are made again in each step also leak memory.

## How to fix it
Make all groups once, at the start, and keep them. `init_process_group(..., device_id=...)` connects
eagerly; one collective before the first step warms the group up.

## Limits
Once, in the first step, it is harmless and only told. The first collective's longer time is not in
the number, only the calls themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.result.finding import NO_GAIN
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.communication._ranges import host_time, ranges, steps_with
from kinetoscope.trace.distributed_frames import is_group_creation
from kinetoscope.units import duration, plural

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When it is a habit."""

    min_steps: float = 0.5
    """Part of the steps from which on groups are made over and over."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find the making of groups in the steps."""
    nodes = ranges(analysis, is_group_creation)
    if not nodes.size:
        return
    inside = host_time(analysis, nodes)
    often = steps_with(analysis, nodes) >= max(options.min_steps * analysis.steps_on_host, 2)
    spent = measure(inside) // analysis.steps_on_host
    once = np.unique(nodes).size
    yield Hit(
        message=(
            f"{plural(once, 'process group')} {'is' if once == 1 else 'are'} made in the recorded "
            f"steps, {duration(spent)} a step on average."
        ),
        evidence=(Evidence("groups", once, "count"), Evidence("host_time", spent, "ns")),
        locations=analysis.locations(analysis.trace.tree.rows[nodes], calls=("new_group",)),
        fix=Fix(
            summary="Make process groups once, before the first step.",
            snippet="group = dist.new_group(ranks)   # at the start, not in the loop",
            reference="https://docs.pytorch.org/docs/stable/distributed.html",
        ),
        gain=analysis.gain(Change(host_cut=inside)) if often else NO_GAIN,
        confidence=0.9,
        claims=inside,
        at_least="high" if often else "info",
        at_most="critical" if often else "info",
        keep=True,
    )


_NEW = "torch/distributed/distributed_c10d.py(4800): new_group"


def _steps(t: TraceBuilder, made: tuple[int, ...]) -> None:
    for i in range(4):
        at = 10_000 * i
        t.step(at, 10_000)
        t.python("train.py(10): step", at + 10, 9_900)
        t.kernel("gemm", at + 100, 3_000, launch_at=at + 50)
        if i in made:
            t.python(_NEW, at + 3_200, 3_000)
        t.kernel("gemm", at + 6_300, 3_000, launch_at=at + 6_250)


def _each(t: TraceBuilder) -> None:
    _steps(t, (0, 1, 2, 3))


def _never(t: TraceBuilder) -> None:
    _steps(t, ())


RULE = Rule(
    code="CM429",
    name="communicator-init-in-window",
    class_="communication",
    summary="Process groups are made while the program trains.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"stacks"}),
    evidence="S",
    references=("https://docs.pytorch.org/docs/stable/distributed.html",),
    examples=(
        Example("a new group in each step", _each, True),
        Example("groups made before", _never, False),
    ),
)
