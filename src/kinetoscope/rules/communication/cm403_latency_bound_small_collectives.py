"""Many small collectives: each costs a call and a latency, and carries next to nothing.

## What it finds
At least 20 collectives of less than 1 MiB in a step, more than half of all, whose cost is
latency rather than transfer.

## Why it matters
A collective of 4 KB takes about as long as one of 200 KB: on a pair of H200 with NVLink, 5 µs
against 6 µs, while 4 MB take 35 µs. Each also costs the host several calls. A few large
messages carry the same bytes in a fraction of the time.

## How to fix it
Use the default `bucket_cap_mb=25` of DDP or more, wrap larger FSDP units, flatten small tensors
into one (`torch._utils._flatten_dense_tensors`) or collect calls with
`torch.distributed._coalescing_manager`, and stack metrics before reducing them.

## Limits
The cost of a message is taken from the shortest rank, or the shortest repetition on one rank.
What DDP or the program needs to copy tensors into a bucket is estimated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.analysis.gains import Triple
from kinetoscope.metrics.comm import OWNER_DDP, OWNER_FSDP
from kinetoscope.metrics.intervals import merge
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.communication._calls import (
    calls_extent,
    hooks_extent,
    in_steady_steps,
    intrinsic_ns,
    merged,
    on_all_ranks,
    per_step,
)
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """What counts as many and small."""

    small_bytes: int = 1 << 20
    """A message below this is dominated by latency; half of the bandwidth needs about 4 MB."""
    min_per_step: int = 20
    """Small collectives in a step; fewer cost little."""
    min_share_of_calls: float = 0.5
    """Part of all collectives that must be small."""
    bucket_bytes: int = 25 << 20
    """Size of the messages to send instead: DDP's default bucket."""
    copy_part: float = 0.3
    """Part of the saved host time that copying into buckets costs."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Count small collectives and replay the step with a few large ones."""
    positions = in_steady_steps(analysis)
    comm = analysis.comm
    small = _small(analysis, options)
    count = per_step(analysis, small)
    if count < options.min_per_step:
        return
    if small.size < options.min_share_of_calls * positions.size or _spread(analysis, small):
        return
    total = int(comm.bytes[small].sum()) // analysis.steps_on_host
    buckets = max(1, -(-total // options.bucket_bytes))
    cost = int(intrinsic_ns(analysis)[small].sum()) // analysis.steps_on_host
    yield Hit(
        message=(
            f"{count} collectives of {size(total // max(count, 1))} on average in each step "
            f"take {duration(cost)} on the device, nearly all of it latency; "
            f"{buckets} would carry the same {size(total)}."
        ),
        evidence=(
            Evidence("small_collectives", count, "count"),
            Evidence("bytes", total, "bytes"),
            Evidence("device_time", cost, "ns", "derived"),
        ),
        locations=analysis.locations(comm.row[small], calls=("all_reduce", "all_gather")),
        fix=_fix(analysis, small, buckets),
        gain=on_all_ranks(analysis, lambda rank: _changes(rank, buckets, options)),
        confidence=0.7,
        claims=merge(calls_extent(analysis, small), analysis.extent(comm.row[small])),
    )


def _small(analysis: Analysis, options: Thresholds) -> IntArray:
    """Positions of the small collectives of the steady steps."""
    positions = in_steady_steps(analysis)
    nbytes = analysis.comm.bytes[positions]
    small: IntArray = positions[(nbytes > 0) & (nbytes < options.small_bytes)]
    return small


def _changes(analysis: Analysis, buckets: int, options: Thresholds) -> Triple:
    """Send a few messages. DDP copies into its buckets today as well."""
    small = _small(analysis, options)
    likely = merged(analysis, small, buckets, hidden=0.0)
    best = merged(analysis, small, buckets, hidden=0.5)
    if (analysis.comm.owner[small] == OWNER_DDP).mean() > 0.5:
        best = replace(best, host_cut=hooks_extent(analysis, small))
        cautious, usual = options.copy_part, 0.0
    else:
        cautious, usual = 2 * options.copy_part, options.copy_part
    return (
        replace(likely, host_cut_factor=1.0 - cautious),
        replace(likely, host_cut_factor=1.0 - usual),
        best,
    )


def _spread(analysis: Analysis, small: IntArray) -> bool:
    """Tensor parallelism: collectives all along the forward pass that kernels wait for.

    They are many, alike, issued inside modules, and cannot be merged.
    """
    comm = analysis.comm
    if np.isin(comm.owner[small], (OWNER_DDP, OWNER_FSDP)).mean() > 0.5:
        return False
    node = analysis.trace.links.node[comm.row[small]]
    module = analysis.trace.tree.module[np.maximum(node, 0)]
    return bool(((node >= 0) & (module >= 0)).mean() > 0.5)


def _fix(analysis: Analysis, small: IntArray, buckets: int) -> Fix:
    owner = analysis.comm.owner[small]
    if (owner == OWNER_DDP).mean() > 0.5:
        return Fix(
            summary="Give DDP larger buckets; 25 MB is the default.",
            snippet="DistributedDataParallel(model, bucket_cap_mb=25)",
            reference="https://docs.pytorch.org/docs/stable/generated/"
            "torch.nn.parallel.DistributedDataParallel.html",
        )
    if (owner == OWNER_FSDP).mean() > 0.5:
        return Fix(
            summary="Shard whole blocks instead of single layers.",
            snippet="for block in model.blocks:\n    fully_shard(block)\nfully_shard(model)",
            reference="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
        )
    noun = "one message" if buckets == 1 else f"{buckets} messages"
    return Fix(
        summary=f"Flatten the tensors and send {noun} a step.",
        snippet=(
            "flat = torch._utils._flatten_dense_tensors(tensors)\n"
            "dist.all_reduce(flat)\n"
            "parts = torch._utils._unflatten_dense_tensors(flat, tensors)"
        ),
        reference="https://docs.pytorch.org/docs/stable/distributed.html",
    )


def _many(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.kernel("gemm", at + 100, 3_000, launch_at=at + 50)
        for i in range(40):
            start = at + 3_200 + 160 * i
            t.all_reduce(start + 30, 10, elements=1024, launch_at=start)


def _few(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.kernel("gemm", at + 100, 9_000, launch_at=at + 50)
        for i in range(4):
            t.all_reduce(at + 9_200 + 100 * i, 90, elements=1 << 24, launch_at=at + 60 + 20 * i)


RULE = Rule(
    code="CM403",
    name="latency-bound-small-collectives",
    class_="communication",
    summary="Many small collectives cost latency and host calls instead of bandwidth.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device"}),
    evidence="TE",
    remedies=("ddp-bucket-size",),
    references=("https://docs.pytorch.org/docs/stable/notes/ddp.html",),
    examples=(
        Example("40 all-reduces of 4 KB, one by one", _many, True),
        Example("4 all-reduces of 64 MB", _few, False),
    ),
)
