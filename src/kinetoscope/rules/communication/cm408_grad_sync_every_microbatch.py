"""Gradients are synchronised after every micro-batch of an accumulated step.

## What it finds
Between two optimizer steps DDP runs forward and backward several times, and each backward pass
sends the full set of gradients.

## Why it matters
With gradient accumulation only the sum counts. Sending it after each of k micro-batches costs k
times the communication, and each time the ranks wait for each other.

## How to fix it
Put all micro-batches but the last under `with model.no_sync():`; with FSDP2 call
`model.set_requires_gradient_sync(False)` for them.

## Limits
With FSDP, `no_sync` keeps whole gradients in memory. Two models with an optimizer each (a GAN)
are no accumulation: their sets of gradients differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.analysis.gains import Triple
from kinetoscope.metrics.comm import OWNER_DDP
from kinetoscope.metrics.intervals import merge
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.communication._calls import (
    calls_extent,
    comm_gain,
    in_steady_steps,
    intrinsic_ns,
    launches_of,
    waiting_known,
)
from kinetoscope.trace.distributed_frames import is_gradient_hook
from kinetoscope.trace.frames import is_optimizer_step
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """What makes an accumulated step."""

    same_bytes: float = 0.9
    """Two backward passes whose gradients agree to this part are of the same model."""
    regular: float = 0.6
    """Part of the steps in which every micro-batch must synchronise."""


@dataclass(frozen=True)
class _Rounds:
    """Backward passes of DDP: window on the host and the collectives launched in it."""

    start: IntArray
    sent: tuple[IntArray, ...]
    nbytes: IntArray


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Count synchronised backward passes between two optimizer steps."""
    positions, groups = _needless(analysis, options)
    if not groups:
        return
    count = round(float(np.median([len(group) for group in groups])))
    comm = analysis.comm
    saved = int(comm.bytes[positions].sum()) // max(len(groups), 1)
    cost = int(intrinsic_ns(analysis)[positions].sum()) // max(len(groups), 1)
    yield Hit(
        message=(
            f"Each optimizer step synchronises its gradients {count} times, once per "
            f"micro-batch; {count - 1} of them ({size(saved)}, {duration(cost)} on the device) "
            "serve nothing."
        ),
        evidence=(
            Evidence("synchronisations", count, "count"),
            Evidence("bytes_in_vain", saved, "bytes"),
            Evidence("device_time", cost, "ns", "derived"),
        ),
        locations=analysis.locations(comm.row[positions], calls=("backward",)),
        fix=Fix(
            summary=(
                f"Synchronise only in the last of the {count} micro-batches: run the others "
                "under `no_sync()`."
            ),
            snippet=(
                "last = k == len(micro_batches) - 1\n"
                "with nullcontext() if last else model.no_sync():\n"
                "    loss(model(x)).backward()"
            ),
            reference="https://docs.pytorch.org/docs/stable/generated/"
            "torch.nn.parallel.DistributedDataParallel.html",
        ),
        gain=comm_gain(
            analysis,
            *_changes(analysis, options),
            others=lambda rank: _changes(rank, options),
            saved_ns=_saved(analysis, positions, len(groups)),
        ),
        confidence=0.9,
        claims=merge(analysis.extent(comm.row[positions]), calls_extent(analysis, positions)),
    )


def _saved(analysis: Analysis, positions: IntArray, steps: int) -> tuple[int, int]:
    """Exposed time of the needless collectives per step, without waiting where it is known."""
    comm = analysis.comm
    exposed = int(np.minimum(comm.exposed, intrinsic_ns(analysis))[positions].sum())
    return exposed // steps, int(comm.exposed[positions].sum()) // steps


def _changes(analysis: Analysis, options: Thresholds) -> Triple:
    """Cautious: the calls stay, the kernels shrink by their cost without waiting."""
    positions = _needless(analysis, options)[0]
    likely = _without(analysis, positions)
    rows = analysis.comm.row[positions]
    if waiting_known(analysis):
        return Change(transfers=(rows, np.full(rows.size, 1000))), likely, likely
    new = analysis.comm.duration[positions] - intrinsic_ns(analysis)[positions]
    return Change(durations=(rows, np.maximum(new, 1000))), likely, likely


def _without(analysis: Analysis, positions: IntArray) -> Change:
    return Change(
        host_cut=calls_extent(analysis, positions),
        drop_calls=launches_of(analysis, analysis.comm.row[positions]),
    )


def _needless(analysis: Analysis, options: Thresholds) -> tuple[IntArray, list[list[int]]]:
    """Positions of all but the last synchronisation of each optimizer step, and the groups."""
    rounds = _rounds(analysis)
    groups = _accumulated(analysis, rounds, options) if rounds.start.size >= 2 else []
    extra = [i for group in groups for i in group[:-1]]
    none = np.empty(0, dtype=np.int64)
    return np.concatenate([none, *(rounds.sent[i] for i in extra)]), groups


def _rounds(analysis: Analysis) -> _Rounds:
    """Windows from one DDP forward to the next with the gradients that were sent in each."""
    trace, comm = analysis.trace, analysis.comm
    forward = analysis.in_steps(analysis.named("DistributedDataParallel.forward"))
    # The same name stands for the shadow of the range on the device.
    forward = forward[trace.column("kind")[forward] == Kind.ANNOTATION]
    start = trace.column("ts_ns")[forward]
    positions = in_steady_steps(analysis)
    positions = positions[comm.owner[positions] == OWNER_DDP]
    positions = positions[comm.is_a("all_reduce", "reduce_scatter")[positions]]
    launch = trace.links.launch[comm.row[positions]]
    at = np.searchsorted(start, trace.column("ts_ns")[np.maximum(launch, 0)], side="right") - 1
    sent = tuple(positions[at == i] for i in range(start.size))
    return _Rounds(start, sent, np.array([comm.bytes[p].sum() for p in sent], dtype=np.int64))


def _accumulated(analysis: Analysis, rounds: _Rounds, options: Thresholds) -> list[list[int]]:
    """Rounds of each optimizer step, where at least two sent the same gradients."""
    edges = _optimizer_edges(analysis, rounds)
    if edges is None:
        return []
    group = np.searchsorted(edges, rounds.start, side="right")
    found, total = [], 0
    for number in np.unique(group).tolist():
        mine = np.flatnonzero(group == number)
        total += 1
        most = int(rounds.nbytes[mine].max())
        full = [int(i) for i in mine if rounds.nbytes[i] >= options.same_bytes * most > 0]
        if len(full) >= 2 and len(full) == mine.size:
            found.append(full)
    return found if len(found) >= options.regular * total else []


def _optimizer_edges(analysis: Analysis, rounds: _Rounds) -> IntArray | None:
    """Where one accumulated step ends and the next begins.

    Without marks of an optimizer the steps of the recording decide, but only if gradients are
    visibly added up in the later rounds of a step and not in the first.
    """
    trace = analysis.trace
    rows = analysis.in_steps(analysis.matching(is_optimizer_step))
    rows = rows[trace.column("kind")[rows] == Kind.ANNOTATION]
    if rows.size:
        return np.asarray(trace.column("ts_ns")[rows])
    return trace.steps.edges if _adds_up(analysis, rounds) else None


def _adds_up(analysis: Analysis, rounds: _Rounds) -> bool:
    """Are gradients added to existing ones in later rounds of a step only?"""
    trace, tree = analysis.trace, analysis.trace.tree
    adds = analysis.named("aten::add_")
    node = tree.node_of[adds]
    parent = np.where(node >= 0, tree.parent[np.maximum(node, 0)], -1)
    hooks = trace.name_flags(is_gradient_hook)
    inside = (parent >= 0) & hooks[trace.column("name_id")[tree.rows[np.maximum(parent, 0)]]]
    at = np.searchsorted(rounds.start, trace.column("ts_ns")[adds[inside]], side="right") - 1
    added = np.bincount(at[at >= 0], minlength=rounds.start.size)
    step = trace.steps.of(rounds.start)
    first = np.append(True, step[1:] != step[:-1])
    return bool(added[~first].sum() > 0 and added[first].sum() < 0.2 * added[~first].sum())


def _accumulate(t: TraceBuilder, *, every: bool) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        for k in range(2):
            start = at + 4_800 * k
            t.annotation("DistributedDataParallel.forward", start + 10, 30)
            t.kernel("gemm", start + 100, 2_000, launch_at=start + 50)
            if every or k == 1:
                t.op(
                    "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
                    start + 60,
                    30,
                )
                t.all_reduce(start + 2_105, 2_600, elements=1 << 24, launch_at=start + 70)
            t.sync(start + 130, 4_600)
        t.annotation("Optimizer.step#SGD.step", at + 9_700, 100)


def _every(t: TraceBuilder) -> None:
    _accumulate(t, every=True)


def _last(t: TraceBuilder) -> None:
    _accumulate(t, every=False)


RULE = Rule(
    code="CM408",
    name="grad-sync-every-microbatch",
    class_="communication",
    summary="Accumulated gradients are synchronised after every micro-batch.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device"}),
    evidence="TE",
    references=("https://docs.pytorch.org/docs/stable/notes/ddp.html",),
    examples=(
        Example("two micro-batches, both synchronised", _every, True),
        Example("two micro-batches, the first under no_sync", _last, False),
    ),
)
