"""Matrix products run in float32 on the vector units; the matrix units stay idle.

## What it finds
Matrix products and convolutions of float32 tensors whose kernels use no matrix (tensor) units, on
a device that has them, and that take a sizeable part of the device's busy time. Where other
products run in half precision, the first place is the function that holds float32 ones only: the
part that autocast leaves out.

## Why it matters
The matrix units multiply TF32 about 7 and bfloat16 about 15 times as fast as the vector units
multiply float32 (H200: 495 and 989 against 67 TFLOP/s). Matrix products in full float32 leave
most of the device unused. PyTorch keeps TF32 off for matrix products unless asked.

## How to fix it
`torch.set_float32_matmul_precision("high")` at the start of the program switches float32 products
to TF32 (10 bits of mantissa, range of float32). `torch.autocast("cuda", dtype=torch.bfloat16)`
around the forward pass gains more: it also halves the traffic, and float32 attention runs in half
precision. Compare the loss curve of some hundred steps before and after.

## Limits
Numerically delicate code (physics, eigenvalues, losses of long sums) may need full float32; it can
stay outside autocast. V100 and T4 have no TF32: there only float16 with a gradient scaler helps.
Small products are bound by their start-up or by memory and gain little; the prediction knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.cost import KernelCosts, kernel_costs
from kinetoscope.metrics.device_ops import Flags, args_of
from kinetoscope.metrics.hardware import Peaks
from kinetoscope.metrics.precision import Dtype, Math
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Location
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import (
    apart,
    busy_share,
    extent_of,
    peaks,
    per_step_ns,
    places,
    shrunk,
)
from kinetoscope.rules.compute._matrix_units import (
    MatrixUnits,
    matrix_units,
    peak_evidence,
    to_matrix_units,
)
from kinetoscope.trace.kinds import Family
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent, rate

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_CALLS = ("linear", "matmul", "mm", "bmm", "conv2d", "einsum")


class Thresholds(Options, frozen=True):
    """When float32 products are worth a word."""

    min_share: float = 0.05
    """Share of the device's busy time in such kernels; below, the step cannot gain much."""
    low_rate: float = 0.35
    """Share of the TF32 peak that products reach at worst (small shapes, H200)."""
    mid_rate: float = 0.6
    """Share of the TF32 peak that products of a few thousand rows reach."""
    high_rate: float = 0.7
    """Share of the bfloat16 peak: 8192 x 1024 x 4096 reached 0.70 on an H200."""
    attention_rate: float = 0.35
    """Share of the bfloat16 peak that fused attention reaches in half precision (CP206)."""
    startup_ns: int = 3000
    """What each kernel costs beside its arithmetic: filling and draining the device."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find float32 matrix kernels on the vector units and replay them on the matrix units."""
    costs = analysis.get(kernel_costs)
    slow = _on_vectormatrix_units(analysis, costs)
    rows = costs.rows[slow]
    device = peaks(analysis)
    units = matrix_units(analysis, device)
    if units is None or rows.size == 0:
        return
    share = busy_share(analysis, rows)
    if share < options.min_share:
        return
    inside = analysis.in_window(rows)
    ns = analysis.trace.column("dur_ns")
    flop = costs.flop[slow][np.isin(rows, inside)].sum()
    took = max(int(ns[inside].sum()), 1)
    spent = per_step_ns(analysis, rows)
    left_out = _left_out(analysis, costs, rows)
    found = places(analysis, rows, calls=_CALLS, whole_step=True)
    seen = {(place.file, place.function) for place in left_out}
    yield Hit(
        message=(
            f"{percent(share)} of the device's busy time ({duration(spent)} a step) is float32 "
            f"matrix work on the vector units, at {rate(flop / took * 1e9, 'FLOP')}; the matrix "
            "units are not used."
        ),
        evidence=(
            Evidence("fp32_matrix_time", spent, "ns"),
            Evidence("busy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("achieved", round(flop / took * 1e9), "flop_per_s", "derived"),
            *peak_evidence(device, units),
        ),
        locations=left_out + tuple(p for p in found if (p.file, p.function) not in seen),
        fix=to_matrix_units(units, left_out=bool(left_out)),
        gain=analysis.gain(
            *_changes(analysis, costs, slow, options=options, target=(device, units))
        ),
        confidence=0.9,
        claims=extent_of(analysis, rows),
    )


def _changes(
    analysis: Analysis,
    costs: KernelCosts,
    slow: Flags,
    *,
    options: Thresholds,
    target: tuple[Peaks | None, MatrixUnits],
) -> list[Change]:
    """TF32 at worst and likely; at best autocast, which reaches attention as well."""
    rows, (device, units) = costs.rows[slow], target
    low, mid, high = _faster(analysis, costs, slow, options=options, target=target)
    family = analysis.trace.column("family")[costs.rows]
    fused = (family == Family.ATTENTION) & (costs.dtype == Dtype.FP32) & (costs.flop > 0)
    if device is not None:
        ns = analysis.trace.column("dur_ns")[costs.rows[fused]]
        rate = options.attention_rate * device.flop_per_ns(units.half)
        high = np.concatenate((high, shrunk(ns, costs.flop[fused] / rate)))
        best = np.concatenate((rows, costs.rows[fused]))
    else:
        best = rows
    return [Change(durations=pair) for pair in ((rows, low), (rows, mid), (best, high))]


def _left_out(analysis: Analysis, costs: KernelCosts, rows: IntArray) -> tuple[Location, ...]:
    """The function that autocast leaves out, where other products are in half precision."""
    family = analysis.trace.column("family")[costs.rows]
    half = np.isin(costs.dtype, (Dtype.BF16, Dtype.FP16)) & (costs.flop > 0)
    half &= np.isin(family, (Family.GEMM, Family.CONV, Family.ATTENTION))
    return apart(analysis, analysis.in_window(rows), costs.rows[half]) if half.any() else ()


def _on_vectormatrix_units(analysis: Analysis, costs: KernelCosts) -> Flags:
    """Float32 products and convolutions by kernels without matrix units, with what serves them.

    Where others of their kind run as TF32, it is allowed already, and the library had a reason.
    """
    family = analysis.trace.column("family")[costs.rows]
    single = (costs.dtype == Dtype.FP32) & (costs.flop > 0)
    result = np.zeros(costs.rows.size, dtype=bool)
    for kind in (Family.GEMM, Family.CONV):
        mine = single & (family == kind)
        if not (mine & (costs.math == Math.TF32)).any():
            result |= mine & np.isin(costs.math, (Math.FP32, Math.FP32_MATRIX))
    ops = np.unique(costs.op_row[result & (family == Family.CONV)])
    return result | (np.isin(family, _SERVING) & np.isin(costs.op_row, ops))


_KERNELS = 2
"""An operator takes this many kernels of the matrix units at most: a backward's two gradients."""
_SERVING = (Family.FFT, Family.LAYOUT)
"""Kernels inside a convolution that go with the algorithm: the transforms of FFT convolution, which
only the vector units have, and conversions between NCHW and NHWC. The matrix units' kernels read
NHWC, so tensors in channels-last order need no conversion any more."""


def _stays(analysis: Analysis, costs: KernelCosts, slow: Flags) -> Flags:
    """Which of these kernels are conversions that matrix units need as well: of NCHW tensors."""
    trace = analysis.trace
    family = trace.column("family")[costs.rows[slow]]
    layout = np.flatnonzero(family == Family.LAYOUT)
    result = np.zeros(family.size, dtype=bool)
    for op in np.unique(costs.op_row[slow][layout]):
        strides = args_of(trace, int(op)).strides
        first = strides[0] if strides and isinstance(strides[0], list) else []
        last = len(first) >= 4 and first[1] == 1
        result[layout[costs.op_row[slow][layout] == op]] = not last
    return result


def _faster(
    analysis: Analysis,
    costs: KernelCosts,
    slow: Flags,
    *,
    options: Thresholds,
    target: tuple[Peaks | None, MatrixUnits],
) -> tuple[IntArray, IntArray, IntArray]:
    """New durations at worst, likely and at best.

    An operator's kernels share its work by their duration, so the shares of those that vanish are
    what they add to the ones that stay.
    """
    device, units = target
    before = analysis.trace.column("dur_ns")[costs.rows[slow]]
    if device is None:
        return shrunk(before, before / 2), shrunk(before, before / 4), shrunk(before, before / 8)
    near = Math.TF32 if units.tf32 else units.half

    serving = np.isin(analysis.trace.column("family")[costs.rows[slow]], _SERVING)
    stays = _stays(analysis, costs, slow)
    op = costs.op_row[slow] + 1
    startup = options.startup_ns * np.minimum(1.0, _KERNELS / np.bincount(op)[op])

    def at(math: Math, share: float, *, traffic: float, kept: Flags) -> IntArray:
        compute = costs.flop[slow] / (share * device.flop_per_ns(math))
        memory = traffic * costs.bytes[slow] / device.achievable_bytes_per_ns
        new = shrunk(before, np.maximum(compute, memory) + startup, floor=0)
        return np.asarray(np.where(kept, before, new), dtype=np.int64)

    return (
        at(near, options.low_rate, traffic=1.0, kept=serving),
        at(near, options.mid_rate, traffic=1.0, kept=stays),
        at(units.half, options.high_rate, traffic=0.5, kept=stays),
    )


def _program(t: TraceBuilder, kernel: str, n: int, dur: float) -> None:
    for step in range(4):
        at = step * 2_000
        t.step(at, 1_990)
        t.op("aten::mm", at + 10, 12, dims=[[n, n], [n, n]])
        t.kernel(kernel, at + 30, dur, launch_at=at + 14)
        t.sync(at + 40, dur - 5)


def _simt(t: TraceBuilder) -> None:
    _program(t, "cutlass_80_simt_sgemm_256x128_8x4_nn_align1", 3_584, 1_900)


def _tf32(t: TraceBuilder) -> None:
    _program(t, "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32", 8_192, 1_900)


RULE = Rule(
    code="CP201",
    name="fp32-gemm-without-tensor-cores",
    class_="compute",
    summary="Matrix products run in float32 on the vector units.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "shapes"}),
    evidence="TS",
    remedies=("autocast", "matmul-precision"),
    gain_of=("matmul-precision",),  # autocast also halves the traffic, and of more than products
    references=(
        "https://docs.pytorch.org/docs/stable/generated/torch.set_float32_matmul_precision.html",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    ),
    examples=(
        Example("a float32 product by a SIMT kernel", _simt, fires=True),
        Example("a float32 product that runs as TF32", _tf32, fires=False),
    ),
)
