"""The program averages gradients itself, one collective for each parameter.

## What it finds
At least 8 all-reduces (or all-gathers, or broadcasts) of different tensors in a step, one after
another, called from the user's own code rather than by DDP or FSDP.

## Why it matters
Each call costs Python, dispatch and a launch; each message costs a latency; and since the loop
runs after `backward()`, nothing overlaps with the backward pass. DDP sends a few buckets while
the backward pass still computes.

## How to fix it
Wrap the model: `DistributedDataParallel(model)`. When that is not possible, flatten the
gradients into one tensor and reduce that, or use `torch.distributed._coalescing_manager`.

## Limits
DDP has costs of its own: it copies every gradient into a bucket. The prediction takes them off
as a part of what the calls cost today.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.analysis.gains import Triple
from kinetoscope.metrics.comm import OWNER_USER, uses_ddp, uses_fsdp
from kinetoscope.metrics.intervals import measure, merge
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.communication._calls import (
    calls_extent,
    comm_gain,
    in_steady_steps,
    intrinsic_ns,
    merged,
    per_step,
)
from kinetoscope.rules.communication._ranges import between_layers
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """What makes a loop over parameters."""

    min_per_step: int = 8
    """Collectives in a step; a few are metrics or a design of their own."""
    min_messages: int = 2
    """Different messages among them: parameters have different shapes."""
    min_elements: int = 16
    """Smaller tensors are metrics, not parameters."""
    bucket_bytes: int = 25 << 20
    """DDP's default bucket."""
    ddp_part: float = 0.6
    """Part of today's host time that DDP's own hooks and bucket copies cost; between 0.3 and
    0.85 in the range. Measured once: 77 parameters gained 23 % of the calls' host time."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find the loop and replay the step with DDP's buckets instead."""
    positions = in_steady_steps(analysis)
    if per_step(analysis, positions) < options.min_per_step:
        return
    positions = _by_user(analysis, positions, options)
    count = per_step(analysis, positions)
    comm = analysis.comm
    if count < options.min_per_step:
        return
    if np.unique(comm.message[positions]).size < options.min_messages:
        return
    total = int(comm.bytes[positions].sum()) // analysis.steps_on_host
    buckets = max(1, -(-total // options.bucket_bytes))
    host = calls_extent(analysis, positions)
    own = np.minimum(comm.exposed, intrinsic_ns(analysis))[positions]
    exposed = int(own.sum()) // analysis.steps_on_host
    yield Hit(
        message=(
            f"The program reduces its gradients itself, with {count} collectives in each step "
            f"({size(total)}); calling them takes the host "
            f"{duration(measure(host) // analysis.steps_on_host)}, and none overlaps with the "
            "backward pass."
        ),
        evidence=(
            Evidence("collectives", count, "count"),
            Evidence("bytes", total, "bytes"),
            Evidence("host_time", measure(host) // analysis.steps_on_host, "ns"),
        ),
        locations=analysis.locations(
            comm.row[positions],
            np.ones(positions.size, dtype=np.int64),
            calls=("all_reduce", "all_gather"),
        ),
        fix=Fix(
            summary=(
                f"Let DDP do it: about {buckets} {'bucket' if buckets == 1 else 'buckets'} "
                f"instead of {count} calls, sent during the backward pass."
            ),
            snippet="model = DistributedDataParallel(model, gradient_as_bucket_view=True)",
            reference="https://docs.pytorch.org/docs/stable/notes/ddp.html",
        ),
        gain=comm_gain(
            analysis,
            *_changes(analysis, buckets, options),
            others=lambda rank: _changes(rank, buckets, options),
            saved_ns=(exposed // 2, exposed),
        ),
        confidence=0.9,
        claims=merge(host, analysis.extent(comm.row[positions])),
    )


def _changes(analysis: Analysis, buckets: int, options: Thresholds) -> Triple:
    """DDP's buckets instead of the calls, with its hooks instead of the loop."""
    positions = _by_user(analysis, in_steady_steps(analysis), options)
    change = merged(analysis, positions, buckets, hidden=0.9)
    tail = merged(analysis, positions, buckets, hidden=0.0)
    return (
        replace(tail, host_cut_factor=1.0 - min(1.0, 0.25 + options.ddp_part)),
        replace(change, host_cut_factor=1.0 - options.ddp_part),
        replace(change, host_cut_factor=1.0 - 0.5 * options.ddp_part),
    )


def _by_user(analysis: Analysis, positions: IntArray, options: Thresholds) -> IntArray:
    """Collectives of tensors that the user's own code called outside of modules.

    Without stacks: those of a program that shows neither DDP nor FSDP.
    """
    comm = analysis.comm
    elements = np.array([max(m.in_nelems, m.out_nelems) for m in comm.messages], dtype=np.int64)
    large = elements[comm.message[positions]] >= options.min_elements
    kind = comm.is_a("all_reduce", "all_gather", "broadcast", "reduce_scatter")[positions]
    node = analysis.trace.links.node[comm.row[positions]]
    if analysis.has("stacks"):
        module = analysis.trace.tree.module[np.maximum(node, 0)] >= 0
        mine = (comm.owner[positions] == OWNER_USER) & ~(module & (node >= 0))
    else:
        own = not uses_ddp(analysis.trace) and not uses_fsdp(analysis.trace)
        backward = analysis.trace.links.backward_root[np.maximum(node, 0)] >= 0
        mine = np.full(positions.size, own) & (node >= 0) & ~backward
        if between_layers(analysis, positions[mine]):
            mine[:] = False
    chosen: IntArray = positions[mine & large & kind]
    return chosen


def _loop(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.python("train.py(10): average_gradients", at + 3_000, 6_900)
        t.kernel("gemm", at + 100, 3_000, launch_at=at + 50)
        for i in range(30):
            start = at + 3_200 + 200 * i
            t.python("torch/distributed/distributed_c10d.py(2978): all_reduce", start - 5, 190)
            t.all_reduce(start + 120, 40, elements=1024 * (1 + i % 3), launch_at=start)


def _activations(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        for i in range(24):
            start = at + 100 + 400 * i
            t.kernel("sm90_xmma_gemm_f16", start + 20, 200, launch_at=start)
            t.all_reduce(start + 222, 150, elements=1 << (16 + i % 2), launch_at=start + 30)


def _metrics(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.python("train.py(10): log", at + 9_000, 900)
        t.kernel("gemm", at + 100, 8_700, launch_at=at + 50)
        for i in range(3):
            t.all_reduce(at + 9_100 + 100 * i, 40, elements=1, launch_at=at + 9_010 + 100 * i)


RULE = Rule(
    code="CM412",
    name="per-parameter-manual-allreduce",
    class_="communication",
    summary="The program reduces gradients one by one instead of in DDP's buckets.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device"}),
    evidence="TE",
    references=("https://docs.pytorch.org/docs/stable/notes/ddp.html",),
    examples=(
        Example("30 all-reduces in a function of the user, one a parameter", _loop, True),
        Example("three scalars reduced for the log", _metrics, False),
        Example("an all-reduce after each layer: tensor parallelism", _activations, False),
    ),
)
