"""What bounds each kernel, and how close it comes to what the device can do (M-12)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.cost import FloatArray, KernelCosts, kernel_costs
from kinetoscope.metrics.hardware import Peaks
from kinetoscope.metrics.precision import Math
from kinetoscope.trace.kinds import Family
from kinetoscope.trace.trace import IntArray, Trace

__all__ = ["Basis", "Bound", "Roofline", "achievable_ns", "roofline"]

LATENCY_NS = 10_000
"""Kernels shorter than this may be bound by starting up, filling the device and draining it."""
LATENCY_EFFICIENCY = 0.5
"""A short kernel that reaches this share of the roof is bound by it all the same."""
TINY_NS = 2_500
"""Work that the device could do in so little time is no work: about the length of a kernel that
does nothing."""
TINY_EFFICIENCY = 0.25
"""A kernel of tiny work that stays below this share of the roof is bound by latency."""
OVER_ROOF = 1.05
"""An efficiency above this means that cost or type are wrong, or that caches served the data."""

MATRIX_FAMILIES = (Family.GEMM, Family.CONV, Family.ATTENTION)
"""What is taken for compute bound when shapes are missing."""


class Bound(IntEnum):
    """What limits a kernel."""

    UNKNOWN = 0
    COMPUTE = 1
    MEMORY = 2
    LATENCY = 3


class Basis(IntEnum):
    """What the bound was read off."""

    FAMILY = 0
    """The kernel's name and length: shapes or peaks are missing."""
    SHAPES = 1
    """FLOP and bytes against the device's peaks."""


@dataclass(frozen=True)
class Roofline:
    """Roofline of each kernel; arrays parallel to `costs.rows`.

    Attributes:
        costs: FLOP and bytes.
        peaks: the device, None when it is not known.
        t_roof_ns: shortest time the data sheet allows, max(FLOP / P, bytes / BW); -1: unknown.
        achievable_ns: the same with the rates that good kernels reach; -1: unknown.
        efficiency: t_roof / duration in [0, 1], clamped; -1: unknown.
        bound: `Bound`.
        basis: `Basis`.
        over_roof: faster than the device allows by more than 5 %; the efficiency is clamped and
            the cost of these kernels is not to be trusted.
        matrix_coverage_ratio: share of the time of GEMM, convolution and attention kernels whose
            cost is known; below 0.8 a sum of FLOP is only a lower bound (M-13). 1 without any.
    """

    costs: KernelCosts
    peaks: Peaks | None
    t_roof_ns: FloatArray
    achievable_ns: FloatArray
    efficiency: FloatArray
    bound: npt.NDArray[np.int8]
    basis: npt.NDArray[np.int8]
    over_roof: npt.NDArray[np.bool_]
    matrix_coverage_ratio: float

    @property
    def over_roof_count(self) -> int:
        """How many kernels seem faster than the device allows."""
        return int(self.over_roof.sum())


def roofline(trace: Trace, peaks: Peaks | None, *, costs: KernelCosts | None = None) -> Roofline:
    """Bound and efficiency of every kernel of a trace.

    Args:
        trace: one rank.
        peaks: its device; None falls back on kernel families.
        costs: result of `kernel_costs`, if there already.
    """
    costs = kernel_costs(trace) if costs is None else costs
    dur = trace.column("dur_ns")[costs.rows]
    family = trace.column("family")[costs.rows]
    matrix = np.isin(family, MATRIX_FAMILIES)
    compute, memory = _times(costs, peaks, achievable=False)
    t_roof = np.maximum(compute, memory)
    # Of matrix kernels half a cost is none: without FLOP the memory side alone says nothing.
    t_roof[(memory < 0) | (matrix & (compute < 0))] = -1.0
    known = (t_roof >= 0) & (dur > 0)
    raw = np.divide(t_roof, dur, out=np.full(dur.size, -1.0), where=known)
    best = np.where(known, np.maximum(*_times(costs, peaks, achievable=True)), -1.0)
    bound = np.where(known, _bound(compute, memory, dur, raw), _family_bound(matrix, dur))
    return Roofline(
        costs=costs,
        peaks=peaks,
        t_roof_ns=np.where(known, t_roof, -1.0),
        achievable_ns=best,
        efficiency=np.minimum(raw, 1.0),
        bound=bound.astype(np.int8),
        basis=np.where(known, Basis.SHAPES, Basis.FAMILY).astype(np.int8),
        over_roof=raw > OVER_ROOF,
        matrix_coverage_ratio=_coverage(dur[matrix], costs.flop[matrix] >= 0),
    )


def achievable_ns(peaks: Peaks, flop: float, traffic: float, *, math: Math) -> float:
    """Time that a good kernel would take, ns: max(FLOP / 0.8 P, bytes / 0.85 BW).

    Measured best rates replace 0.8 P where the device file has them. -1 when the unit's rate is
    not known or a cost is negative (unknown).
    """
    rate = peaks.achievable_flop_per_ns(math)
    if traffic < 0 or flop < 0 or (flop > 0 and not rate):
        return -1.0
    return max(flop / rate if flop else 0.0, traffic / peaks.achievable_bytes_per_ns)


def _times(
    costs: KernelCosts, peaks: Peaks | None, *, achievable: bool
) -> tuple[FloatArray, FloatArray]:
    """Time of the arithmetic and of the traffic, ns; -1 where unknown."""
    unknown = np.full(costs.rows.size, -1.0)
    if peaks is None:
        return unknown, unknown.copy()
    rate = peaks.flop_rates(achievable=achievable)[costs.math]
    bandwidth = peaks.achievable_bytes_per_ns if achievable else peaks.bandwidth_gbps
    has_flop = (costs.flop >= 0) & (rate > 0)
    compute = np.divide(costs.flop, rate, out=unknown, where=has_flop)
    return compute, np.where(costs.bytes >= 0, costs.bytes / bandwidth, -1.0)


def _bound(
    compute: FloatArray, memory: FloatArray, dur: IntArray, efficiency: FloatArray
) -> IntArray:
    """The longer of the two times, unless the kernel is too short to tell."""
    work = np.maximum(compute, memory)
    short = (dur < LATENCY_NS) & (efficiency < LATENCY_EFFICIENCY)
    tiny = (work < TINY_NS) & (efficiency < TINY_EFFICIENCY)
    wider = np.where(compute >= memory, Bound.COMPUTE, Bound.MEMORY)
    return np.where(short | tiny, Bound.LATENCY, wider)


def _family_bound(matrix: npt.NDArray[np.bool_], dur: IntArray) -> IntArray:
    """The guess without shapes; a kernel without a length tells nothing."""
    guess = np.where(matrix, Bound.COMPUTE, Bound.MEMORY)
    guess = np.where(dur < LATENCY_NS, Bound.LATENCY, guess)
    return np.where(dur > 0, guess, Bound.UNKNOWN)


def _coverage(dur: IntArray, known: npt.NDArray[np.bool_]) -> float:
    total = int(dur.sum())
    return float(dur[known].sum() / total) if total else 1.0
