"""Gradient or parameter communication hides behind less than 70 % of compute that could hide it.

## What it finds
DDP's or FSDP's collectives overlap with compute kernels for less than 70 % of their length,
although the step has more compute than communication, and the exposed part takes more than 5 %
of the step. With the recordings of all ranks, waiting for a slow rank does not count.

## Why it matters
Both frameworks send gradients while the backward pass still computes. When little overlaps, the
transfer comes on top of the step instead of beside it.

## How to fix it
DDP: start earlier with smaller buckets (`bucket_cap_mb`), `static_graph=True`, and call the DDP
module itself rather than the module inside. FSDP: wrap each block, so that one block's transfer
runs under another one's compute, and prefetch (`set_modules_to_backward_prefetch`).

## Limits
A collective whose result the next kernel needs (tensor parallelism, a loss) cannot overlap;
this rule looks only at collectives that DDP or FSDP issued.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.comm import OWNER_DDP, OWNER_FSDP
from kinetoscope.metrics.intervals import Coverage, clip, measure, subtract
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.communication._calls import comm_gain, exposed_comm, in_steady_steps
from kinetoscope.rules.communication.cm401_exposed_communication import hide
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When overlap is poor."""

    max_overlap: float = 0.70
    """Hidden part of the communication below which overlap counts as poor (TraceLens)."""
    min_share: float = 0.05
    """Exposed communication as a share of the step (TraceLens)."""
    usable_part: float = 0.67
    """Part of the compute that comes late enough: the backward pass is two thirds of it."""
    owned_part: float = 0.8
    """Part of the exposed time that DDP or FSDP must have issued."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Compare exposed communication with the compute that could hide it."""
    found, device = exposed_comm(analysis), analysis.device
    positions = in_steady_steps(analysis)
    if device is None or positions.size == 0:
        return
    if found.share < options.min_share or found.overlap >= options.max_overlap:
        return
    comm = analysis.comm
    exposed = Coverage(found.stretches).between(comm.start, comm.end)
    owned = np.isin(comm.owner, (OWNER_DDP, OWNER_FSDP))
    known = exposed[positions]
    if known[owned[positions]].sum() < options.owned_part * max(int(known.sum()), 1):
        return
    inside = device.within(*analysis.times.window)
    free = measure(subtract(inside.compute, inside.comm))
    total = measure(clip(found.stretches, *analysis.times.window))
    if measure(inside.compute) < measure(inside.comm):
        return
    possible = min(1.0, options.usable_part * free / max(total, 1))
    fsdp = bool((comm.owner[positions] == OWNER_FSDP).mean() > 0.5)
    # The last bucket of each step has nothing left to hide behind.
    each = max(positions.size / analysis.steps_on_host, 1.0)
    likely = possible * (1.0 - 1.0 / (each + 1.0))
    yield Hit(
        message=(
            f"Only {percent(found.overlap)} of the {'FSDP' if fsdp else 'DDP'} communication "
            f"runs under kernels; {duration(found.ns)} of each step is exposed"
            + ("." if found.separated else " (or waiting for a peer).")
        ),
        evidence=(
            Evidence("overlap", round(max(found.overlap, 0.0), 4), "ratio", "derived"),
            Evidence("exposed_time", found.ns, "ns"),
            Evidence("compute_that_could_hide_it", free // analysis.steps, "ns"),
        ),
        locations=analysis.locations(comm.row[positions], exposed[positions], calls=("backward",)),
        fix=_FSDP_FIX if fsdp else _DDP_FIX,
        gain=comm_gain(
            analysis,
            hide(analysis, exposed, 0.3 * likely if found.separated else 0.0),
            hide(analysis, exposed, 0.5 * likely),
            hide(analysis, exposed, likely if found.separated else 1.0),
            saved_ns=(
                int(0.5 * likely * found.ns),
                int((likely if found.separated else 1.0) * found.ns),
            ),
        ),
        confidence=0.7 if found.separated else 0.4,
        at_most="critical" if found.separated else "medium",
        claims=found.stretches,
    )


_DDP_FIX = Fix(
    summary=(
        "Let the buckets leave earlier: smaller buckets, a static graph, and calls of the DDP "
        "module itself."
    ),
    snippet="DistributedDataParallel(model, bucket_cap_mb=10, static_graph=True)",
    reference="https://docs.pytorch.org/docs/stable/notes/ddp.html",
)
_FSDP_FIX = Fix(
    summary="Wrap each block and prefetch the next one while this one computes.",
    snippet="block.set_modules_to_forward_prefetch([next_block])",
    reference="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
)


def _serial(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.annotation("DistributedDataParallel.forward", at + 10, 30)
        t.kernel("gemm", at + 100, 7_000, launch_at=at + 50)
        t.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", at + 60, 40)
        t.all_reduce(at + 7_100, 2_800, launch_at=at + 70)
        t.sync(at + 120, 9_790)


def _parallel(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.annotation("DistributedDataParallel.forward", at + 10, 30)
        t.kernel("gemm", at + 100, 9_400, launch_at=at + 50)
        t.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", at + 60, 40)
        t.all_reduce(at + 7_000, 2_800, launch_at=at + 70)
        t.sync(at + 120, 9_690)


RULE = Rule(
    code="CM402",
    name="poor-comm-compute-overlap",
    class_="communication",
    summary="Gradient communication does not overlap with the compute that could hide it.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device"}),
    evidence="T",
    remedies=("ddp-bf16-gradients", "ddp-bucket-size"),
    gain_of=("ddp-bucket-size",),
    references=("https://docs.pytorch.org/docs/stable/notes/ddp.html",),
    examples=(
        Example("DDP's all-reduce begins when the backward pass is over", _serial, True),
        Example("the same all-reduce, most of it under the backward pass", _parallel, False),
    ),
)
