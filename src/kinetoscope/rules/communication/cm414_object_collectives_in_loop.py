"""Python objects are exchanged between the ranks in every step.

## What it finds
`all_gather_object`, `broadcast_object_list` and their kin in at least half of the steps.

## Why it matters
Such a call pickles the objects, sends their sizes, reads the sizes back on the host, sends the
bytes, and unpickles what arrives. With NCCL the bytes go through the device. The host waits for
each of these.

## How to fix it
Put the numbers into one tensor and reduce or gather that, every few steps, and read it later.
For objects that must travel, use a group of its own with Gloo.

## Limits
Waiting for a late rank inside the call moves to the next collective; how much of the call that is
one rank cannot tell. The prediction allows for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Intervals, measure, points_in
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.communication._ranges import (
    collectives_inside,
    host_time,
    launched_inside,
    ranges,
    steps_with,
)
from kinetoscope.trace.distributed_frames import is_object_collective
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When objects are part of the step."""

    min_steps: float = 0.5
    """Part of the steps with such a call; once an epoch is fine."""
    waiting_part: float = 0.5
    """Part of the calls that may be waiting for a peer, at worst."""
    tensor_ns: int = 60_000
    """Cost of the one tensor collective that remains, per step."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Replay the step without the calls."""
    nodes = ranges(analysis, is_object_collective)
    steps = analysis.steps_on_host
    if not nodes.size or steps_with(analysis, nodes) < options.min_steps * steps:
        return
    tree = analysis.trace.tree
    inside = host_time(analysis, nodes)
    calls = round(nodes.size / steps)
    cost = measure(inside) // steps
    yield Hit(
        message=(
            f"{max(calls, 1)} {'call exchanges' if calls <= 1 else 'calls exchange'} pickled "
            f"objects between the ranks in every step; the host spends {duration(cost)} there."
        ),
        evidence=(
            Evidence("calls", max(calls, 1), "count"),
            Evidence("host_time", cost, "ns"),
            Evidence("collectives", collectives_inside(analysis, inside).size // steps, "count"),
        ),
        locations=analysis.locations(
            tree.rows[nodes],
            calls=("all_gather_object", "gather_object", "broadcast_object_list"),
        ),
        fix=Fix(
            summary="Gather the numbers as one tensor, every few steps, instead of objects.",
            snippet=(
                "metrics = torch.stack([loss.detach(), correct])\n"
                "if step % 50 == 0:\n"
                "    dist.all_reduce(metrics)"
            ),
            reference="https://docs.pytorch.org/docs/stable/distributed.html",
        ),
        gain=analysis.gain(
            _without(analysis, inside, 1.0 - options.waiting_part, options),
            _without(analysis, inside, 1.0 - 0.3 * options.waiting_part, options),
            _without(analysis, inside, 1.0, options),
        ),
        confidence=0.9,
        claims=inside,
    )


def _without(analysis: Analysis, inside: Intervals, part: float, options: Thresholds) -> Change:
    syncs = _syncs(analysis, inside)
    return Change(
        host_cut=inside,
        host_cut_factor=part,
        unblock=syncs,
        drop_calls=launched_inside(analysis, inside) if part == 1.0 else None,
        extra_host_ns=options.tensor_ns if part < 1.0 else 0,
    )


def _syncs(analysis: Analysis, inside: Intervals) -> IntArray:
    rows = analysis.rows(Kind.SYNC_CALL)
    return rows[points_in(inside, analysis.trace.column("ts_ns")[rows])]


def _steps(t: TraceBuilder, every: int) -> None:
    for i in range(4):
        at = 10_000 * i
        t.step(at, 10_000)
        t.python("train.py(10): log", at + 3_200, 6_700)
        t.kernel("gemm", at + 100, 3_000, launch_at=at + 50)
        if i % every == 0:
            name = "torch/distributed/distributed_c10d.py(3090): all_gather_object"
            t.python(name, at + 3_300, 4_000)
            for k in range(2):
                start = at + 4_000 + 1_000 * k
                t.all_reduce(start + 100, 40, elements=64, launch_at=start, name="allgather")
                t.sync(start + 50, 120)
        t.kernel("gemm", at + 7_500, 2_000, launch_at=at + 7_450)


def _each(t: TraceBuilder) -> None:
    _steps(t, 1)


def _rarely(t: TraceBuilder) -> None:
    _steps(t, 4)


RULE = Rule(
    code="CM414",
    name="object-collectives-in-loop",
    class_="communication",
    summary="Pickled Python objects are exchanged between the ranks in every step.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"stacks"}),
    evidence="E",
    references=("https://docs.pytorch.org/docs/stable/distributed.html",),
    examples=(
        Example("4 ms of all_gather_object in each step", _each, True),
        Example("the same in one of four steps", _rarely, False),
    ),
)
