"""FSDP's limit on running all-gathers holds the host, and the device runs dry.

## What it finds
Waits for an event (`cudaEventSynchronize`) inside FSDP's hooks, at least 1 % of the step, with
idle time of the device after them.

## Why it matters
`limit_all_gathers` of the first FSDP lets the host issue two all-gathers ahead, so that the
allocator does not need memory for more. When the host is slow afterwards, the device waits.

## How to fix it
If memory allows: `FullyShardedDataParallel(..., limit_all_gathers=False)`. FSDP2 needs no such
limit.

## Limits
A host that is ahead anyway waits here without harm: no idle time follows, and nothing is said.
Without the limit more memory is in use; allocator retries (MM303) would cost more than the wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.distributed_frames import is_fsdp_gather
from kinetoscope.trace.frames import is_event_wait
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When the limit matters."""

    min_share: float = 0.01
    """Waiting in FSDP's hooks as a share of the step."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Replay the step without these waits."""
    rows = _limiter_waits(analysis)
    held = int(analysis.trace.column("dur_ns")[rows].sum()) // analysis.steps_on_host
    if not rows.size or held < options.min_share * analysis.step_ns:
        return
    idle = measure(analysis.idle_of(rows)) // analysis.steps
    yield Hit(
        message=(
            f"FSDP's limit on all-gathers holds the host for {duration(held)} of each step; "
            "the device has nothing queued when it goes on."
        ),
        evidence=(
            Evidence("host_held", held, "ns"),
            Evidence("idle_meanwhile", idle, "ns", "derived"),
            Evidence("waits", round(rows.size / analysis.steps_on_host), "count"),
        ),
        locations=analysis.locations(rows),
        fix=Fix(
            summary="Lift the limit if memory allows, or use fully_shard.",
            snippet="FullyShardedDataParallel(model, limit_all_gathers=False)",
            reference="https://docs.pytorch.org/docs/stable/fsdp.html",
        ),
        gain=analysis.gain(Change(unblock=rows)),
        confidence=0.7,
        at_most="medium",
        claims=analysis.extent(rows),
    )


def _limiter_waits(analysis: Analysis) -> IntArray:
    """Waits for one event inside FSDP's gathering hooks, in the steady steps."""
    trace, tree = analysis.trace, analysis.trace.tree
    rows = analysis.in_steps(analysis.rows(Kind.SYNC_CALL))
    waits = np.array([is_event_wait(n) for n in trace.names], dtype=bool)
    rows = rows[waits[trace.column("name_id")[rows]]] if rows.size else rows
    if not rows.size or not tree.rows.size:
        return rows[:0]
    gather = np.array([is_fsdp_gather(n) for n in trace.names], dtype=bool)
    around = nearest(np.append(gather, False)[trace.column("name_id")[tree.rows]], tree.parent)
    node = tree.node_of[rows]
    found: IntArray = rows[(node >= 0) & (around[np.maximum(node, 0)] >= 0)]
    return found


def _steps(t: TraceBuilder, *, host: int) -> None:
    for i in range(4):
        at = 10_000 * i
        t.step(at, 10_000)
        t.annotation("FullyShardedDataParallel._pre_forward", at + 10, 3_050)
        t.kernel("gemm", at + 100, 3_000, launch_at=at + 30)
        t.runtime("cudaEventSynchronize", at + 60, 2_990)
        t.op("aten::add", at + 3_100, host)
        t.kernel("gemm", at + 3_200 + host, 3_000, launch_at=at + 3_120 + host)
        t.sync(at + 3_200 + host, 3_050)


def _dry(t: TraceBuilder) -> None:
    _steps(t, host=2_500)


def _elsewhere(t: TraceBuilder) -> None:
    for i in range(4):
        at = 10_000 * i
        t.step(at, 10_000)
        t.kernel("gemm", at + 100, 3_000, launch_at=at + 30)
        t.runtime("cudaEventSynchronize", at + 60, 2_990)
        t.kernel("gemm", at + 5_700, 3_000, launch_at=at + 5_600)


RULE = Rule(
    code="CM419",
    name="fsdp-rate-limiter-block",
    class_="communication",
    summary="FSDP's limit on running all-gathers holds the host, and the device runs dry.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device"}),
    evidence="S",
    references=("https://docs.pytorch.org/docs/stable/fsdp.html",),
    examples=(
        Example("a wait in _pre_forward, then 2.5 ms of host work", _dry, True),
        Example("the same wait, but not FSDP's", _elsewhere, False),
    ),
)
