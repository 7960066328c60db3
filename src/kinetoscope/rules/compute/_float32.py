"""How long float64 work takes in float32."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.cost import KernelCosts, kernel_costs
from kinetoscope.metrics.device_ops import DeviceOps, Flags
from kinetoscope.metrics.hardware import Peaks
from kinetoscope.metrics.precision import Dtype, Math
from kinetoscope.trace.kinds import Family
from kinetoscope.trace.trace import IntArray

FloatArray = npt.NDArray[np.float64]
Triple = tuple[float, float, float]

_SQUARE = 64
"""Products with fewer rows or columns may run on the vector units even where TF32 is allowed."""
_STARTUP_NS = 1_500
"""Kernels shorter than this do not become shorter."""


@dataclass(frozen=True)
class Rates:
    """At worst, likely and at best.

    Attributes:
        left: time in float32 over that in float64 where memory bounds an operator.
        vector: share of the vector units' float32 peak that products reach.
        tf32: share of the matrix units' TF32 peak that products reach.
    """

    left: Triple
    vector: Triple
    tf32: Triple


def float32_ns(
    analysis: Analysis, work: DeviceOps, wide: IntArray, rates: Rates
) -> tuple[IntArray, ...]:
    """Durations in float32 at worst, likely and at best.

    Half the bytes move. Where arithmetic bounds an operator, the vector units' rates count; those
    of products and convolutions follow from their operations.

    Args:
        analysis: the recording.
        work: its device events.
        wide: positions in `work` of those that become float32.
        rates: what they reach then.
    """
    ns = work.ns[wide].astype(np.float64)
    least = np.minimum(ns, _STARTUP_NS)
    new = [ns * part for part in rates.left]
    costs, device = analysis.get(kernel_costs), analysis.peaks
    if device is not None and costs.rows.size:
        at = np.minimum(np.searchsorted(costs.rows, work.rows[wide]), costs.rows.size - 1)
        known = (costs.rows[at] == work.rows[wide]) & (costs.flop[at] > 0)
        mine, at = np.flatnonzero(known), at[known]
        ratio = _vector_ratios(costs, at, ns[mine], device)
        products = _products(analysis, costs)[at]
        moved = costs.bytes[at] / 2 / device.achievable_bytes_per_ns
        for time, part, rate in zip(new, rates.left, _rates(analysis, costs, rates), strict=True):
            bound = np.maximum(2 * part * ratio * ns[mine], moved)
            time[mine] = np.where(ratio > 0, bound, time[mine])
            if rate > 0:
                multiplied = np.maximum(costs.flop[at] / rate, moved)
                time[mine] = np.where(products, multiplied, time[mine])
    return tuple(np.clip(time, least, ns).astype(np.int64) for time in new)


def _vector_ratios(costs: KernelCosts, at: IntArray, ns: FloatArray, device: Peaks) -> FloatArray:
    """Ratio of the vector units' rates where arithmetic bounds an operator, 0 elsewhere."""
    double, single = device.flop_per_ns(Math.FP64), device.flop_per_ns(Math.FP32)
    if double <= 0 or single <= 0:
        return np.zeros(at.size)
    fastest = max(double, device.flop_per_ns(Math.FP64_MATRIX))
    return np.where(costs.flop[at] / fastest > 0.3 * ns, min(double / single, 0.5), 0.0)


def _products(analysis: Analysis, costs: KernelCosts) -> Flags:
    """Which kernels are matrix products or convolutions."""
    family = analysis.trace.column("family")[costs.rows]
    return np.isin(family, (Family.GEMM, Family.CONV))


def _rates(analysis: Analysis, costs: KernelCosts, rates: Rates) -> Triple:
    """Rates of float32 products at worst, likely and at best, FLOP/ns; 0 where unknown.

    The matrix units multiply float32 only where TF32 is allowed. Where the recording does not
    tell, either may come: the vector units at worst, TF32 at best, likely their geometric mean.
    """
    device = analysis.peaks
    if device is None:
        return 0.0, 0.0, 0.0
    vector = [share * device.flop_per_ns(Math.FP32) for share in rates.vector]
    matrix = [share * device.flop_per_ns(Math.TF32) for share in rates.tf32]
    matrix = [max(pair) for pair in zip(vector, matrix, strict=True)]
    allowed = tf32_allowed(analysis, costs)
    if allowed is None:
        return vector[0], math.sqrt(vector[1] * matrix[1]), matrix[2]
    low, mid, high = matrix if allowed else vector
    return low, mid, high


def tf32_allowed(analysis: Analysis, costs: KernelCosts) -> bool | None:
    """Is TF32 allowed for products? By what else ran, else by what the capture saw of the program.

    Returns:
        None where neither tells.
    """
    single = (costs.dtype == Dtype.FP32) & (costs.m >= _SQUARE) & (costs.n >= _SQUARE)
    if (single & (costs.math == Math.TF32)).any():
        return True
    if (single & (costs.math == Math.FP32)).any():
        return False
    captured = analysis.trace.sidecar
    settings = captured.facts.get("settings") if captured is not None else None
    precision = settings.get("float32_matmul_precision") if isinstance(settings, dict) else None
    return None if precision is None else precision != "highest"
