"""Kernels read views in an order that costs most of the memory's bandwidth.

## What it finds
Pointwise operators, reductions, norms, softmax and copies of 8 MB and more that work on tensors
of different memory order, or on every n-th element of one, and take much longer than moving their
data once, although they fill the device.

## Why it matters
Such kernels should run at the speed of the memory. When one operand is a transposed view of
another order, or a slice with a step, neighbouring threads read far apart addresses, and each
read fetches data that nobody uses.

## How to fix it
Make the tensor contiguous once, outside the loop; produce it in the other order; keep images in
channels_last throughout; or let `torch.compile` generate a kernel for the layout.

## Limits
The traffic is counted from the shapes: what an operator reads twice is not known. A slow kernel
on plain tensors is the library's and not reported. Lookups (`index`, `gather`) are another matter
(CP216); copies that only change the layout too (CP222).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.launch_shape import launch_shapes
from kinetoscope.metrics.precision import Dtype
from kinetoscope.metrics.roofline import Bound
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules._memory_order import in_mixed_order
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import (
    alone,
    busy_share,
    device_work,
    extent_of,
    heaviest_op,
    multiprocessors,
    per_step_ns,
    places,
    positions,
    shrunk,
)
from kinetoscope.trace.kinds import Family
from kinetoscope.units import duration, percent, rate

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_MOVES_DATA = (
    Family.ELEMENTWISE,
    Family.REDUCTION,
    Family.NORM,
    Family.SOFTMAX,
    Family.COPY,
    Family.POOL,
)
_WIDE = (Dtype.FP64, Dtype.COMPLEX128)


class Thresholds(Options, frozen=True):
    """When slow movers of data are worth a word."""

    min_bytes: float = 8e6
    """Traffic of the operator; less may be bound by start-up (RULES, MM312)."""
    min_ns: int = 10_000
    """Shorter kernels are bound by their start-up."""
    below: float = 0.4
    """Share of the data sheet's bandwidth."""
    min_blocks: float = 2.0
    """Blocks for each multiprocessor; with fewer the grid is the reason (CP203)."""
    min_share: float = 0.05
    """Share of the busy time in such kernels."""
    reached: tuple[float, float, float] = (0.5, 0.65, 0.8)
    """Share of the bandwidth that a kernel of the right layout reaches."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find slow movers and replay them at the memory's speed."""
    roof = analysis.roof
    if roof.peaks is None:
        return
    work = device_work(analysis)
    slow = _slow(analysis, options)
    slow[slow] = in_mixed_order(analysis, work, positions(work, roof.costs.rows[slow]))
    rows, ns = roof.costs.rows[slow], analysis.trace.column("dur_ns")[roof.costs.rows[slow]]
    if rows.size == 0 or busy_share(analysis, rows) < options.min_share:
        return
    traffic = roof.costs.bytes[slow]
    achieved = float(traffic.sum() / max(int(ns.sum()), 1))
    share, spent = busy_share(analysis, rows), per_step_ns(analysis, rows)
    which = positions(work, rows)
    bandwidth = roof.peaks.bandwidth_gbps
    yield Hit(
        message=(
            f"`{heaviest_op(analysis, work, which)}` and the like move their data at "
            f"{rate(achieved * 1e9, 'B')}, {percent(achieved / bandwidth)} of the memory's "
            f"bandwidth: {duration(spent)} a step, {percent(min(share, 1.0))} of the busy time"
            "; its operands lie in different memory order."
        ),
        evidence=(
            Evidence("slow_kernel_time", spent, "ns"),
            Evidence("busy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("achieved", round(achieved * 1e9), "bytes_per_s", "derived"),
            Evidence("bandwidth", round(bandwidth * 1e9), "bytes_per_s", "derived"),
        ),
        locations=places(analysis, rows),
        fix=Fix(
            summary="Make the view contiguous once, or produce it in the order of the other "
            "operand.",
            snippet="x = x.contiguous()  # once, before the loop that reads it",
            reference="https://docs.nvidia.com/deeplearning/performance/"
            "dl-performance-memory-limited/index.html",
        ),
        gain=analysis.gain(
            *(
                Change(durations=(rows, shrunk(ns, traffic / (part * bandwidth))))
                for part in options.reached
            )
        ),
        confidence=0.7,
        claims=extent_of(analysis, rows),
        at_most="high",
    )


def _slow(analysis: Analysis, options: Thresholds) -> npt.NDArray[np.bool_]:
    """Kernels that move data slowly though they fill the device and have it for themselves."""
    roof, costs = analysis.roof, analysis.roof.costs
    ns = analysis.trace.column("dur_ns")[costs.rows]
    family = analysis.trace.column("family")[costs.rows]
    slow = np.isin(family, _MOVES_DATA) & (roof.bound == Bound.MEMORY)
    slow &= (ns >= options.min_ns) & ~np.isin(costs.dtype, _WIDE)
    slow &= costs.bytes >= options.min_bytes * costs.share
    slow &= (roof.efficiency >= 0) & (roof.efficiency < options.below)
    shapes = analysis.get(launch_shapes)
    blocks = shapes.per_multiprocessor(multiprocessors(analysis))
    slow &= (blocks < 0) | (blocks >= options.min_blocks)
    slow[slow] = alone(analysis, costs.rows[slow])
    return np.asarray(slow)


def _adding(t: TraceBuilder, second: list[int], dur: float) -> None:
    shape = [8_192, 8_192]
    for step in range(4):
        at = step * 1_000
        t.step(at, 990)
        t.op(
            "aten::add",
            at + 10,
            12,
            dims=[shape, shape, []],
            strides=[[8_192, 1], second, []],
        )
        t.kernel("elementwise_kernel", at + 30, dur, launch_at=at + 14, grid=(1_056, 1, 1))
        t.sync(at + 40, dur)


def _strided(t: TraceBuilder) -> None:
    _adding(t, [1, 8_192], 800)  # 805 MB: 1.0 of 4.8 TB/s


def _dense(t: TraceBuilder) -> None:
    _adding(t, [8_192, 1], 200)


RULE = Rule(
    code="MM312",
    name="low-effective-bandwidth-kernel",
    class_="memory",
    summary="Kernels read views in an order that costs most of the memory's bandwidth.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "shapes"}),
    evidence="T",
    references=(
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-memory-limited/index.html",
    ),
    examples=(
        Example("an addition of a transposed view at 21 % of the bandwidth", _strided, fires=True),
        Example("of two plain tensors at 84 %", _dense, fires=False),
    ),
)
