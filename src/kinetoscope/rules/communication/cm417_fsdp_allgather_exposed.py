"""FSDP gathers parameters with nothing to compute beside it.

## What it finds
FSDP's all-gathers that no kernel hides, the first one of each step left out, at least 5 % of the
step. With the recordings of all ranks, waiting for a late rank does not count.

## Why it matters
The parameters of a unit must be there before it computes. Gathered while the unit before computes,
they cost nothing; gathered when they are needed, the device idles.

## How to fix it
Prefetch: `set_modules_to_forward_prefetch` and `set_modules_to_backward_prefetch` (FSDP1:
`forward_prefetch=True`, `BackwardPrefetch.BACKWARD_PRE`). Keep small or last units unsharded after
the forward (`reshard_after_forward=False`), or shard within a node only.

## Limits
Prefetching holds one more unit in memory. A unit whose predecessor computes for less time than the
transfer takes stays partly exposed; the prediction counts on the compute that is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.comm import OWNER_FSDP
from kinetoscope.metrics.intervals import Coverage, measure, subtract
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.communication._calls import comm_gain, exposed_comm, in_steady_steps
from kinetoscope.rules.communication.cm401_exposed_communication import hide
from kinetoscope.trace.distributed_frames import is_fsdp1_range
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When gathering is exposed."""

    min_share: float = 0.05
    """Exposed all-gathers as a share of the step (TraceLens' bound for communication)."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Hide all-gathers behind the compute of the unit before."""
    comm, device = analysis.comm, analysis.device
    positions = _later_gathers(analysis)
    if device is None or not positions.size:
        return
    found = exposed_comm(analysis)
    exposed = np.zeros(comm.row.size, dtype=np.int64)
    exposed[positions] = Coverage(found.stretches).between(comm.start, comm.end)[positions]
    ns = int(exposed.sum()) // analysis.steps
    if ns < options.min_share * analysis.step_ns:
        return
    inside = device.within(*analysis.times.window)
    free = measure(subtract(inside.compute, inside.comm)) // analysis.steps
    possible = min(1.0, free / max(ns, 1))
    first = any(is_fsdp1_range(name) for name in analysis.trace.names)
    yield Hit(
        message=(
            f"FSDP gathers parameters for {duration(ns)} of each step while nothing computes"
            + ("." if found.separated else ", or waits for a peer there.")
        ),
        evidence=(
            Evidence("exposed_time", ns, "ns"),
            Evidence("all_gathers", round(positions.size / analysis.steps_on_host), "count"),
            Evidence("compute_that_could_hide_it", free, "ns"),
        ),
        locations=analysis.locations(comm.row[positions], exposed[positions], calls=("forward",)),
        fix=_FSDP1 if first else _FSDP2,
        gain=comm_gain(
            analysis,
            hide(analysis, exposed, 0.3 * possible if found.separated else 0.0),
            hide(analysis, exposed, 0.6 * possible),
            hide(analysis, exposed, possible if found.separated else 1.0),
            saved_ns=(int(0.6 * possible * ns), int(possible * ns)),
        ),
        confidence=0.7 if found.separated else 0.4,
        at_most="critical" if found.separated else "medium",
        claims=analysis.extent(comm.row[positions]),
    )


_FSDP2 = Fix(
    summary="Prefetch the next block while this one computes, in both directions.",
    snippet=(
        "for block, following in zip(blocks, blocks[1:]):\n"
        "    block.set_modules_to_forward_prefetch([following])\n"
        "    following.set_modules_to_backward_prefetch([block])"
    ),
    reference="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
)
_FSDP1 = Fix(
    summary="Prefetch the next unit while this one computes, in both directions.",
    snippet=(
        "FullyShardedDataParallel(\n"
        "    model, forward_prefetch=True, backward_prefetch=BackwardPrefetch.BACKWARD_PRE\n"
        ")"
    ),
    reference="https://docs.pytorch.org/docs/stable/fsdp.html",
)


def _later_gathers(analysis: Analysis) -> IntArray:
    """FSDP's all-gathers but the first of each step, which nothing can precede."""
    comm, trace = analysis.comm, analysis.trace
    positions = in_steady_steps(analysis)
    mine = (comm.owner == OWNER_FSDP) & comm.is_a("all_gather")
    positions = positions[mine[positions]] if comm.row.size else positions
    launch = trace.links.launch[comm.row[positions]]
    positions, launch = positions[launch >= 0], launch[launch >= 0]
    step = trace.steps.of(trace.column("ts_ns")[launch])
    later: IntArray = positions[np.append(False, step[1:] == step[:-1])[: step.size]]
    return later


def _steps(t: TraceBuilder, *, early: bool) -> None:
    for i in range(4):
        at = 10_000 * i
        t.step(at, 10_000)
        for k in range(6):
            start, long = at + 300 + 1_600 * k, 700
            t.annotation(f"FSDP::all_gather (blocks.{k})", at + 10 + 40 * k, 25)
            begin = max(start - 900, at + 60) if early else start
            t.all_reduce(
                begin,
                long,
                elements=16 << 20,
                launch_at=at + 12 + 40 * k,
                name="_allgather_base",
            )
            first = start if early else start + long + 5
            t.kernel("gemm", first, 1_550 if early else 880, launch_at=at + 38 + 40 * k)
        t.sync(at + 300, 9_600)


def _late(t: TraceBuilder) -> None:
    _steps(t, early=False)


def _prefetched(t: TraceBuilder) -> None:
    _steps(t, early=True)


RULE = Rule(
    code="CM417",
    name="fsdp-allgather-exposed",
    class_="communication",
    summary="FSDP gathers parameters with nothing to compute beside it.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches"}),
    evidence="S",
    references=("https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",),
    examples=(
        Example("each block is gathered when it is needed", _late, True),
        Example("each block is gathered while the one before computes", _prefetched, False),
    ),
)
