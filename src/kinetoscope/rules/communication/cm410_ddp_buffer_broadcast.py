"""DDP sends the model's buffers from rank 0 before every forward pass.

## What it finds
DDP's buffer synchronisation (`_sync_buffers`), or broadcasts inside its forward, in at least half
of the steps, whose own cost is at least 1 % of the step.

## Why it matters
With buffers (BatchNorm's running statistics, masks registered as buffers) DDP flattens them,
broadcasts them and copies them back before each forward. The broadcast is also a barrier at the
start of the step.

## How to fix it
`DistributedDataParallel(..., broadcast_buffers=False)`: each rank keeps its own statistics, and
rank 0's are saved. Where the statistics must agree, use `SyncBatchNorm`. Constant masks belong into
plain attributes, not into buffers.

## Limits
Waiting for a late rank inside the broadcast is not gained: it moves to the next collective. With
one rank the part that is waiting is unknown, and the prediction is cautious.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Intervals, measure, merge, subtract
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.communication._calls import calls_extent, intrinsic_ns
from kinetoscope.rules.communication._ranges import (
    collectives_inside,
    host_time,
    launched_inside,
    ranges,
    steps_with,
)
from kinetoscope.trace.distributed_frames import is_buffer_sync, is_ddp_forward
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When the broadcast matters."""

    min_steps: float = 0.5
    """Part of the steps with a broadcast; rarer ones are the user's own."""
    min_share: float = 0.01
    """Own cost as a share of the step."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Replay the step without the synchronisation of buffers."""
    forward = ranges(analysis, is_ddp_forward)
    steps, comm = analysis.steps_on_host, analysis.comm
    if not forward.size:
        return
    positions = collectives_inside(analysis, host_time(analysis, forward))
    positions = positions[comm.is_a("broadcast", "coalesced")[positions]]
    frames = ranges(analysis, is_buffer_sync)
    if not positions.size or steps_with(analysis, forward) < options.min_steps * steps:
        return
    if positions.size < options.min_steps * steps:
        return
    host = host_time(analysis, frames) if frames.size else calls_extent(analysis, positions)
    own = int(intrinsic_ns(analysis)[positions].sum()) // steps
    cost = (own if comm.on_device else 0) + measure(host) // steps
    if cost < options.min_share * analysis.step_ns:
        return
    nbytes = int(comm.bytes[positions].sum()) // steps
    what = f" ({size(nbytes)})" if nbytes else ""
    yield Hit(
        message=(
            f"DDP broadcasts its buffers{what} before every forward pass: "
            f"{duration(measure(host) // steps)} on the host, {duration(own)} of transfer."
        ),
        evidence=(
            Evidence("host_time", measure(host) // steps, "ns"),
            Evidence("transfer", own, "ns", "derived"),
            Evidence("bytes", nbytes, "bytes"),
        ),
        locations=analysis.locations(analysis.trace.tree.rows[forward]),
        fix=Fix(
            summary=(
                "Switch the broadcast off; rank 0's running statistics are the ones to save. "
                "Where they must agree, use SyncBatchNorm."
            ),
            snippet="DistributedDataParallel(model, broadcast_buffers=False)",
            reference="https://docs.pytorch.org/docs/stable/generated/"
            "torch.nn.parallel.DistributedDataParallel.html",
        ),
        gain=analysis.gain(
            _without(analysis, positions, host, 0.5),
            _without(analysis, positions, host, 1.0),
        ),
        confidence=0.9,
        claims=host,
        at_most="medium",
    )


def _without(analysis: Analysis, positions: IntArray, host: Intervals, part: float) -> Change:
    """No copies and calls; of the kernels only the waiting for other ranks remains."""
    comm = analysis.comm
    if not comm.on_device:
        moved = analysis.extent(comm.row[positions])
        return Change(host_cut=subtract(host, moved), host_cut_factor=part)
    stay = comm.duration[positions] - (part * intrinsic_ns(analysis)[positions]).astype(np.int64)
    return Change(
        host_cut=merge(host),
        host_cut_factor=part,
        drop_calls=launched_inside(analysis, host, collectives=False) if part == 1.0 else None,
        durations=(comm.row[positions], np.maximum(stay, 1000)),
    )


def _steps(t: TraceBuilder, *, host: int) -> None:
    for i in range(4):
        at = 10_000 * i
        t.step(at, 10_000)
        t.annotation("DistributedDataParallel.forward", at + 10, 3_000)
        t.python("torch/nn/parallel/distributed.py(2405): _sync_buffers", at + 20, host)
        t.all_reduce(at + 90, 20, elements=20_000, launch_at=at + 40, name="broadcast")
        t.kernel("gemm", at + 120 + host, 6_000, launch_at=at + 60 + host)
        t.sync(at + 3_100, 3_100 + host)


def _costly(t: TraceBuilder) -> None:
    _steps(t, host=1_200)


def _cheap(t: TraceBuilder) -> None:
    _steps(t, host=60)


RULE = Rule(
    code="CM410",
    name="ddp-buffer-broadcast",
    class_="communication",
    summary="DDP broadcasts the model's buffers before every forward pass.",
    check=check,
    options=Thresholds(),
    evidence="E",
    references=("https://docs.pytorch.org/docs/stable/notes/ddp.html",),
    examples=(
        Example("1.2 ms before each forward, the device waits", _costly, True),
        Example("one small buffer: 60 us of the step", _cheap, False),
    ),
)
