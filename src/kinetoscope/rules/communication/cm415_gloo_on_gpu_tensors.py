"""Tensors of the GPU travel through the host's memory with Gloo.

## What it finds
Gloo collectives in at least half of the steps of a program that computes on a device, with copies
from the device to the host for them, and no NCCL kernel at all.

## Why it matters
Gloo reduces in the host's memory: each message is copied off the device, sent over sockets,
reduced by the processor, and copied back. NCCL sends it from device to device.

## How to fix it
`dist.init_process_group("nccl")`, or `"cpu:gloo,cuda:nccl"` where tensors of the processor are
exchanged as well.

## Limits
How fast NCCL would be depends on the link; the prediction leaves a tenth to a half of today's time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import clip, intersect, measure, union
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.distributed_frames import is_gloo_range
from kinetoscope.trace.kinds import CopyKind, Kind
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When Gloo carries the device's data."""

    min_steps: float = 0.5
    """Part of the steps with a Gloo collective."""
    min_share: float = 0.02
    """Idle time of the device under Gloo's work as a share of the step."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find Gloo's ranges, and copies off the device for them."""
    trace, device = analysis.trace, analysis.device
    if device is None or analysis.rows(Kind.COLLECTIVE).size:
        return
    gloo = analysis.in_steps(analysis.matching(is_gloo_range))
    steps = np.unique(trace.steps.of(trace.column("ts_ns")[gloo])).size
    copies = _copies_for(analysis)
    if not copies.size or steps < options.min_steps * analysis.steps_on_host:
        return
    idle = union(analysis.gaps.start, analysis.gaps.end)
    waiting = intersect(idle, clip(analysis.extent(gloo), *analysis.window))
    ns = measure(waiting) // analysis.steps
    if ns < options.min_share * analysis.step_ns:
        return
    moved = int(np.maximum(trace.column("bytes")[copies], 0).sum()) // analysis.steps
    yield Hit(
        message=(
            f"Gloo carries tensors of the device: {size(moved)} a step go through the host, and "
            f"the device is idle for {duration(ns)} meanwhile."
        ),
        evidence=(
            Evidence("bytes_through_host", moved, "bytes"),
            Evidence("idle_under_gloo", ns, "ns"),
            Evidence("collectives", round(gloo.size / analysis.steps_on_host), "count"),
        ),
        locations=analysis.locations(copies, calls=("all_reduce", "backward")),
        fix=Fix(
            summary="Use NCCL for tensors of the device.",
            snippet='dist.init_process_group("cpu:gloo,cuda:nccl")',
            reference="https://docs.pytorch.org/docs/stable/distributed.html",
        ),
        gain=analysis.gain(
            Change(host_cut=waiting, host_cut_factor=0.5),
            Change(host_cut=waiting, host_cut_factor=0.8),
            Change(host_cut=waiting, host_cut_factor=0.95),
        ),
        confidence=0.7,
        claims=waiting,
    )


_TO_HOST = (CopyKind.D2H_PAGEABLE, CopyKind.D2H_PINNED, CopyKind.D2H_UNKNOWN)


def _copies_for(analysis: Analysis) -> IntArray:
    """Copies off the device that a collective's host range asked for."""
    trace, tree = analysis.trace, analysis.trace.tree
    rows = analysis.in_window(analysis.rows(Kind.COPY))
    rows = rows[np.isin(trace.column("copy_kind")[rows], _TO_HOST)]
    if not rows.size or not tree.rows.size:
        return rows[:0]
    around = nearest(tree.kind == Kind.HOST_COLLECTIVE, tree.parent)
    node = trace.links.node[rows]
    found: IntArray = rows[(node >= 0) & (around[np.maximum(node, 0)] >= 0)]
    return found


def _steps(t: TraceBuilder, *, on_device: bool) -> None:
    for i in range(4):
        at = 10_000 * i
        t.step(at, 10_000)
        t.kernel("gemm", at + 100, 3_000, launch_at=at + 50)
        t.annotation("c10d::allreduce_", at + 3_150, 100)
        if on_device:
            t.copy("DtoH Pinned", 64 << 20, at + 3_200, 1_200, launch_at=at + 3_160)
        t.annotation("gloo:all_reduce", at + 4_420, 4_000, tid=3000)
        t.python("<built-in method wait of torch._C._distributed_c10d.Work>", at + 3_260, 5_200)
        t.kernel("gemm", at + 8_500, 1_000, launch_at=at + 8_470)


def _through_host(t: TraceBuilder) -> None:
    _steps(t, on_device=True)


def _of_the_host(t: TraceBuilder) -> None:
    _steps(t, on_device=False)


RULE = Rule(
    code="CM415",
    name="gloo-on-gpu-tensors",
    class_="communication",
    summary="Tensors of the GPU travel through the host's memory with Gloo.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device"}),
    evidence="S",
    references=("https://docs.pytorch.org/docs/stable/distributed.html",),
    examples=(
        Example("64 MiB off the device, then gloo:all_reduce", _through_host, True),
        Example("Gloo for tensors of the processor", _of_the_host, False),
    ),
)
