"""A barrier in every step makes the host wait for the device and the ranks for each other.

## What it finds
`dist.barrier()` in at least half of the recorded steps.

## Why it matters
A barrier with NCCL is an all-reduce of one element that the host waits for. The queue of
launched work runs empty, and the device idles until the host has launched again. Collectives
order the ranks by themselves.

## How to fix it
Remove it from the step. For debugging use `torch.distributed.monitored_barrier`; around
checkpoints keep it, they are rare.

## Limits
When a rank is late, the waiting moves to the next collective; the prediction counts only what
the host gains by not being held up; at best, other waits of the same function go as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.analysis.gains import Triple
from kinetoscope.metrics.intervals import measure, union
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.communication._calls import launches_of, on_all_ranks
from kinetoscope.trace.collective_names import collective_of
from kinetoscope.trace.distributed_frames import is_barrier_frame
from kinetoscope.trace.kinds import DEVICE_WORK, Kind
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """What counts as a barrier of the step."""

    min_steps: float = 0.5
    """Part of the steps that must have one; rarer ones belong to checkpoints or evaluation."""
    sync_within_ns: int = 200_000
    """Without stacks a synchronisation this soon after the barrier's call belongs to it."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find barrier calls and replay the step without them."""
    nodes, steps = _steady_barriers(analysis)
    trace, tree = analysis.trace, analysis.trace.tree
    if np.unique(steps).size < options.min_steps * analysis.steps_on_host or not nodes.size:
        return
    syncs = _syncs(analysis, nodes, options)
    cut = union(tree.start[nodes], tree.end[nodes])
    per_step = round(nodes.size / analysis.steps_on_host)
    held = int(trace.column("dur_ns")[syncs].sum()) // analysis.steps_on_host
    yield Hit(
        message=(
            f"{max(per_step, 1)} {'barrier' if per_step <= 1 else 'barriers'} in each step "
            f"hold the host for {duration(max(held, measure(cut) // analysis.steps_on_host))}."
        ),
        evidence=(
            Evidence("barriers", max(per_step, 1), "count"),
            Evidence("host_held", max(held, measure(cut) // analysis.steps_on_host), "ns"),
        ),
        locations=analysis.locations(tree.rows[nodes], calls=("barrier",)),
        fix=Fix(
            summary="Remove the barrier; collectives already order the ranks.",
            snippet="",
            reference="https://docs.pytorch.org/docs/stable/distributed.html",
        ),
        gain=on_all_ranks(analysis, lambda rank: _changes(rank, options)),
        confidence=0.9,
        claims=cut,
        at_least="low",
        keep=True,
    )


def _steady_barriers(analysis: Analysis) -> tuple[IntArray, IntArray]:
    """Nodes of the barriers of the steady steps, and the step of each."""
    nodes = _barriers(analysis)
    steps = analysis.trace.steps.of(analysis.trace.tree.start[nodes])
    steady = np.isin(steps, analysis.times.steady)
    return nodes[steady], steps[steady]


def _changes(analysis: Analysis, options: Thresholds) -> Triple:
    """Only the wait goes; the call and its kernel go; other waits of the call go as well."""
    nodes = _steady_barriers(analysis)[0]
    tree = analysis.trace.tree
    syncs = _syncs(analysis, nodes, options)
    gone = Change(
        host_cut=union(tree.start[nodes], tree.end[nodes]),
        unblock=syncs,
        drop_calls=_launched_inside(analysis, nodes),
    )
    more = np.union1d(syncs, _companions(analysis, nodes))
    return Change(unblock=syncs), gone, replace(gone, unblock=more)


def _barriers(analysis: Analysis) -> IntArray:
    """Outermost node of each barrier call: the Python frame, else the host range."""
    tree = analysis.trace.tree
    if not tree.rows.size:
        return np.empty(0, dtype=np.int64)
    frame = tree.named(is_barrier_frame) & (tree.kind == Kind.PYTHON)
    label = tree.named(lambda name: collective_of(name) == "barrier")
    flagged = frame | (label & (tree.kind == Kind.HOST_COLLECTIVE))
    nodes = np.flatnonzero(flagged)
    result, reach, thread = [], -1, -1
    for node in nodes.tolist():
        if tree.thread[node] != thread or tree.start[node] >= reach:
            result.append(node)
            reach, thread = int(tree.end[node]), int(tree.thread[node])
    return np.array(result, dtype=np.int64)


def _syncs(analysis: Analysis, nodes: IntArray, options: Thresholds) -> IntArray:
    """Synchronisations inside the barriers, or right after a range without a frame."""
    trace, tree = analysis.trace, analysis.trace.tree
    rows = rows_of(trace, Kind.SYNC_CALL)
    ts, thread = trace.column("ts_ns")[rows], trace.column("thread")[rows]
    framed = tree.kind[nodes] == Kind.PYTHON
    found = []
    for i, node in enumerate(nodes.tolist()):
        until = tree.end[node] + (0 if framed[i] else options.sync_within_ns)
        mine = (thread == tree.thread[node]) & (ts >= tree.start[node]) & (ts < until)
        found.append(rows[mine])
    return np.unique(np.concatenate(found)) if found else np.empty(0, dtype=np.int64)


def _companions(analysis: Analysis, nodes: IntArray) -> IntArray:
    """Other synchronisations in the same call of the user's function: often a loss for the log."""
    trace, tree = analysis.trace, analysis.trace.tree
    frames = np.unique(tree.user_frame[nodes])
    rows = rows_of(trace, Kind.SYNC_CALL)
    node = tree.node_of[rows]
    frame = np.where(node >= 0, tree.user_frame[np.maximum(node, 0)], -1)
    return rows[np.isin(frame, frames[frames >= 0])]


def _launched_inside(analysis: Analysis, nodes: IntArray) -> IntArray:
    """Calls inside the barriers that launched something."""
    trace, tree = analysis.trace, analysis.trace.tree
    rows = rows_of(trace, *DEVICE_WORK)
    launch = launches_of(analysis, rows)
    at = trace.column("ts_ns")[launch]
    order = np.argsort(tree.start[nodes], kind="stable")
    start, end = tree.start[nodes][order], tree.end[nodes][order]
    i = np.searchsorted(start, at, side="right") - 1
    return launch[(i >= 0) & (at < end[np.maximum(i, 0)])]


def _barrier(t: TraceBuilder, at: float) -> None:
    t.annotation("nccl:all_reduce_barrier", at, 30)
    t.kernel("ncclDevKernel_AllReduce_Sum_i8_RING_LL()", at + 4_000, 10, launch_at=at + 5)


def _each_step(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.kernel("gemm", at + 100, 4_000, launch_at=at + 50)
        _barrier(t, at + 110)
        t.sync(at + 150, 3_980)
        t.op("aten::add", at + 4_200, 3_900)
        t.kernel("gemm", at + 8_200, 1_500, launch_at=at + 8_150)


def _once(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.kernel("gemm", at + 100, 9_500, launch_at=at + 50)
        if step == 3:
            _barrier(t, at + 110)


RULE = Rule(
    code="CM413",
    name="barrier-in-step",
    class_="communication",
    summary="A barrier in every step empties the launch queue.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device"}),
    evidence="TE",
    references=("https://docs.pytorch.org/docs/stable/distributed.html",),
    examples=(
        Example("a barrier after the first kernel, then host work", _each_step, True),
        Example("a barrier in one of four steps", _once, False),
    ),
)
