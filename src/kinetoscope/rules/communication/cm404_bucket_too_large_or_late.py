"""DDP sends its gradients in one or two large buckets, when the backward pass is nearly over.

## What it finds
DDP steps with one or two gradient all-reduces for more than 50 MiB of gradients, whose first one
begins when more than 60 % of the backward pass has run, and whose exposed part takes at least 5 %
of the step.

## Why it matters
A bucket leaves when its last gradient is ready. A bucket that holds most of the model leaves at
the end, so nothing is left that could hide its transfer.

## How to fix it
Lower `bucket_cap_mb` to its default of 25 or below: the gradients of the last layers then travel
while those of the first are computed.

## Limits
The tail that remains is that of the last bucket. What the kernels of the backward pass can hide is
estimated from their length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.comm import OWNER_DDP
from kinetoscope.metrics.intervals import Coverage, measure, subtract
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.communication._calls import (
    comm_gain,
    exposed_comm,
    in_steady_steps,
    per_step,
)
from kinetoscope.rules.communication.cm401_exposed_communication import hide
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """What makes a bucket too large."""

    max_buckets: int = 2
    """Buckets of a step; more of them overlap one with the next."""
    bucket_bytes: int = 25 << 20
    """DDP's default; so many bytes fit in two of these."""
    min_late: float = 0.6
    """Part of the backward pass that has run when the first bucket leaves."""
    min_share: float = 0.05
    """Exposed communication as a share of the step."""
    backward_part: float = 0.67
    """Part of the kernels that belongs to the backward pass."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Count buckets, see when they leave, and hide all but the last one's transfer."""
    comm, device = analysis.comm, analysis.device
    positions = in_steady_steps(analysis)
    positions = positions[(comm.owner[positions] == OWNER_DDP)]
    positions = positions[comm.is_a("all_reduce")[positions] & (comm.bytes[positions] > 1 << 20)]
    count = per_step(analysis, positions)
    if device is None or not 1 <= count <= options.max_buckets:
        return
    total = int(comm.bytes[positions].sum()) // analysis.steps_on_host
    found = exposed_comm(analysis)
    if total <= 2 * options.bucket_bytes or found.share < options.min_share:
        return
    late = _late(analysis, positions)
    if late < options.min_late:
        return
    inside = device.within(*analysis.times.window)
    free = options.backward_part * measure(subtract(inside.compute, inside.comm))
    buckets = -(-total // options.bucket_bytes)
    exposed = Coverage(found.stretches).between(comm.start, comm.end)
    possible = min(1.0, free / max(int(exposed.sum()), 1)) * (1.0 - 1.0 / buckets)
    yield Hit(
        message=(
            f"DDP sends {size(total)} of gradients in {count} "
            f"{'bucket' if count == 1 else 'buckets'}; the first leaves when {percent(late)} of "
            f"the backward pass is over, and {duration(found.ns)} of each step is exposed."
        ),
        evidence=(
            Evidence("buckets", count, "count"),
            Evidence("gradients", total, "bytes"),
            Evidence("backward_done", round(late, 4), "ratio", "derived"),
            Evidence("exposed_time", found.ns, "ns"),
        ),
        locations=analysis.locations(comm.row[positions], calls=("backward",)),
        fix=Fix(
            summary=f"Use buckets of 25 MB: {buckets} instead of {count}.",
            snippet="DistributedDataParallel(model, bucket_cap_mb=25)",
            reference="https://docs.pytorch.org/docs/stable/generated/"
            "torch.nn.parallel.DistributedDataParallel.html",
        ),
        gain=comm_gain(
            analysis,
            hide(analysis, exposed, 0.4 * possible if found.separated else 0.0),
            hide(analysis, exposed, 0.7 * possible),
            hide(analysis, exposed, possible if found.separated else 1.0),
            saved_ns=(int(0.7 * possible * found.ns), int(possible * found.ns)),
        ),
        confidence=0.7 if found.separated else 0.4,
        at_most="critical" if found.separated else "medium",
        claims=found.stretches,
    )


def _late(analysis: Analysis, positions: IntArray) -> float:
    """Part of each step's backward kernels that began before the first bucket; the median."""
    trace = analysis.trace
    rows = analysis.times.device_rows
    node = trace.links.node[rows]
    backward = (node >= 0) & (trace.links.backward_root[np.maximum(node, 0)] >= 0)
    rows = np.setdiff1d(rows[backward], analysis.comm.row)
    ts, launch = trace.column("ts_ns"), trace.links.launch
    step = trace.steps.of(ts[launch[rows]])
    sent = trace.steps.of(ts[launch[analysis.comm.row[positions]]])
    parts = [
        float((ts[rows[step == s]] < analysis.comm.start[positions[sent == s]].min()).mean())
        for s in np.intersect1d(step, sent).tolist()
    ]
    return float(np.median(parts)) if parts else 0.0


_HOOK = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def _steps(t: TraceBuilder, *, buckets: int) -> None:
    for i in range(4):
        at = 20_000 * i
        t.step(at, 20_000)
        t.annotation("DistributedDataParallel.forward", at + 10, 100)
        t.kernel("gemm", at + 300, 3_000, launch_at=at + 20)
        for k in range(10):
            t.backward("MmBackward0", at + 200 + 30 * k, 14, seq=k)
            t.kernel("gemm", at + 3_400 + 610 * k, 600, launch_at=at + 202 + 30 * k, tid=1001)
            if (k + 1) % (10 // buckets) == 0:
                t.op(_HOOK, at + 215 + 30 * k, 14, tid=1001)
                each = 9_000 // buckets
                start = max(at + 4_010 + 610 * k, at + 4_010 + 610 * (10 // buckets - 1))
                start += 200 if buckets > 1 else 0
                t.all_reduce(
                    start,
                    each,
                    elements=(64 << 20) // buckets,
                    launch_at=at + 216 + 30 * k,
                    tid=1001,
                )
        t.sync(at + 700, 18_300)


def _one(t: TraceBuilder) -> None:
    _steps(t, buckets=1)


def _ten(t: TraceBuilder) -> None:
    _steps(t, buckets=10)


RULE = Rule(
    code="CM404",
    name="bucket-too-large-or-late",
    class_="communication",
    summary="DDP's buckets are so large that they leave when the backward pass is over.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches"}),
    evidence="E",
    references=("https://docs.pytorch.org/docs/stable/notes/ddp.html",),
    examples=(
        Example("256 MiB in one bucket after the backward pass", _one, True),
        Example("the same gradients in ten buckets", _ten, False),
    ),
)
