"""Kernels run slower while communication runs beside them.

## What it finds
The same kernel with the same grid takes at least 15 % longer (median) under a communication kernel
than alone, and the excess adds up to at least 3 % of the step.

## Why it matters
Communication kernels occupy multiprocessors and bandwidth of their own. Overlap is still better
than none, but what it costs the kernels can be less.

## How to fix it
Give NCCL fewer channels (`NCCL_MAX_CTAS`, `NCCL_MAX_NCHANNELS`), let copy engines do the work
(symmetric memory, zero-CTA collectives), or give compute a stream of higher priority.

## Limits
Fewer channels also slow the transfer down; the prediction takes off at most 70 % of the excess.
The same grid on other data can take another time for its own reasons.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device import DeviceActivity
from kinetoscope.metrics.intervals import Coverage, clip
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, times

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """What counts as contention."""

    min_ratio: float = 1.15
    """Median under communication over median alone."""
    max_ratio: float = 3.0
    """More than that has other reasons than a few multiprocessors less."""
    min_share: float = 0.03
    """Excess as a share of the step."""
    min_each: int = 3
    """Kernels of one kind needed on either side."""
    covered: float = 0.8
    """Part of a kernel under communication from which on it counts as overlapped."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Compare kernels of the same name and grid with and without communication beside them."""
    device = analysis.device
    if device is None or not analysis.comm.row.size or not analysis.comm.on_device:
        return
    rows, over = _slowed(analysis, device, options)
    total = int(over.sum()) // analysis.steps
    if total < options.min_share * analysis.step_ns:
        return
    dur = analysis.trace.column("dur_ns")[rows]
    alone = int((dur - over).sum())

    def less(part: float) -> Change:
        return Change(durations=(rows, dur - (part * over).astype(np.int64)))

    start = analysis.trace.column("ts_ns")[rows]
    yield Hit(
        message=(
            f"{round(rows.size / analysis.steps):,} kernels a step take "
            f"{times(float(dur.sum()) / max(alone, 1))} as long under communication as alone: "
            f"{duration(total)} of each step."
        ),
        evidence=(
            Evidence("kernels", round(rows.size / analysis.steps), "count"),
            Evidence("excess", total, "ns", "derived"),
            Evidence("ratio", round(float(dur.sum()) / max(alone, 1), 6), "ratio", "derived"),
        ),
        locations=analysis.locations(rows, over),
        fix=Fix(
            summary="Give NCCL fewer channels, and measure the step: the transfer slows as well.",
            snippet="NCCL_MAX_CTAS=8 torchrun ...",
            reference="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
        ),
        gain=analysis.gain(less(0.0), less(0.35), less(0.7)),
        confidence=0.7,
        at_most="medium",
        claims=clip(analysis.extent(rows[np.argsort(start, kind="stable")]), *analysis.window),
    )


def _slowed(
    analysis: Analysis, device: DeviceActivity, options: Thresholds
) -> tuple[IntArray, IntArray]:
    """Overlapped kernels of the kinds that suffer, and how much longer than alone each took."""
    trace = analysis.trace
    rows = analysis.in_window(analysis.rows(Kind.KERNEL))
    rows = rows[trace.column("device")[rows] == device.device]
    start, dur = trace.column("ts_ns")[rows], trace.column("dur_ns")[rows]
    under = Coverage(device.comm).between(start, start + dur)
    key = trace.column("name_id")[rows].astype(np.int64) << 32
    key |= trace.column("launch_id")[rows].astype(np.int64) & 0xFFFFFFFF
    order = np.argsort(key, kind="stable")
    bounds = np.flatnonzero(np.diff(key[order])) + 1
    found, excess = [rows[:0]], [rows[:0].astype(np.int64)]
    for same in np.split(order, bounds) if order.size else []:
        beside = same[under[same] >= options.covered * np.maximum(dur[same], 1)]
        apart = same[under[same] == 0]
        if min(beside.size, apart.size) < options.min_each:
            continue
        usual = float(np.median(dur[apart]))
        ratio = float(np.median(dur[beside])) / max(usual, 1.0)
        if options.min_ratio <= ratio <= options.max_ratio:
            found.append(rows[beside])
            excess.append(np.maximum(dur[beside] - usual, 0).astype(np.int64))
    return np.concatenate(found), np.concatenate(excess)


def _steps(t: TraceBuilder, beside: int) -> None:
    for i in range(4):
        at = 10_000 * i
        t.step(at, 10_000)
        for k in range(10):
            long = beside if k >= 5 else 500
            start = at + 200 + (510 * k if k < 5 else 510 * 5 + (beside + 10) * (k - 5))
            t.kernel("gemm", start, long, launch_at=at + 20 + 10 * k)
        t.all_reduce(at + 2_740, 5 * beside - 20, launch_at=at + 140)
        t.sync(at + 180, 2_700 + 5 * beside)


def _slower(t: TraceBuilder) -> None:
    _steps(t, 700)


def _same(t: TraceBuilder) -> None:
    _steps(t, 510)


RULE = Rule(
    code="CM421",
    name="comm-compute-contention",
    class_="communication",
    summary="Kernels run slower while communication runs beside them.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device"}),
    evidence="TL",
    references=("https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",),
    examples=(
        Example("kernels of 0.5 ms take 0.7 ms under an all-reduce", _slower, True),
        Example("under the all-reduce they take as long as before", _same, False),
    ),
)
