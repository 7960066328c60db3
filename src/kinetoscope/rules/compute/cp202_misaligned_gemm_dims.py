"""A dimension of a matrix product is no multiple of what the matrix units want.

## What it finds
Matrix products of half-precision (or TF32, fp8) tensors in which the rows of an operand or of the
result do not start at multiples of 16 bytes, and which run well below the rate of the program's
aligned products.

## Why it matters
The matrix units are fed by 16-byte loads. A vocabulary of 50257 puts each row at an odd address:
the library falls back to kernels that load two bytes at a time, or off the matrix units. On an
H200 a bfloat16 product with that width took 7.2 times as long as with 50304.

## How to fix it
Round the dimension up to a multiple of 64 (of 8 at least): vocabulary, hidden size, number of
heads times head size, number of classes. The extra rows of an embedding or output layer are never
looked up; mask their logits, or leave them: training pushes them down.

## Limits
Where the number is given by a checkpoint, pad the weight after loading. A token count that is not
a multiple of 8 matters only where it is the contiguous dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.cost import KernelCosts, kernel_costs
from kinetoscope.metrics.cost_args import Args
from kinetoscope.metrics.device_ops import args_of, dense
from kinetoscope.metrics.hardware import Peaks
from kinetoscope.metrics.precision import Dtype, Math, element_size
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import (
    busy_share,
    extent_of,
    peaks,
    per_step_ns,
    places,
    shrunk,
)
from kinetoscope.trace.kinds import Family
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent, rate

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_FACTORS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "_addmm_activation": 1, "addmm_": 1}
"""Position of the left factor among the arguments; the right one follows."""
_LOAD_BYTES = 16
_GUIDE = (
    "https://docs.nvidia.com/deeplearning/performance/"
    "dl-performance-matrix-multiplication/index.html"
)
_MATRIX = (Math.BF16, Math.FP16, Math.TF32, Math.FP8, Math.INT8)


class Thresholds(Options, frozen=True):
    """When a misaligned product is worth a word."""

    min_share: float = 0.03
    """Share of the device's busy time in misaligned products."""
    slow_ratio: float = 0.7
    """Misaligned products must stay below this part of the rate of aligned ones."""
    usual_rate: float = 0.75
    """Share of the peak that aligned products reach when the recording has none to compare: the
    median of 470 shapes in bfloat16 of 1e11 operations and more on an H200 (quartiles 0.70 and
    0.78)."""
    startup_ns: int = 2_000
    """What a product takes beside its arithmetic: those of 1e9 to 3e10 operations reach 0.5 to 0.7
    of the peak, as a start-up of 2 microseconds makes them."""
    spread: float = 1.35
    """Factor by which the rate after padding may be lower or higher than that."""
    pad_to: int = 64
    """Elements to round up to: 128 bytes in half precision (NVIDIA's matrix guide)."""
    min_flop: float = 2e8
    """Smaller products are bound by their start-up, whatever their shape."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find misaligned products and replay them at the rate of aligned ones."""
    costs, device = analysis.get(kernel_costs), peaks(analysis)
    if device is None:
        return
    gemm = (analysis.trace.column("family")[costs.rows] == Family.GEMM) & (costs.m > 0)
    gemm &= np.isin(costs.math, _MATRIX) & (costs.flop >= options.min_flop * costs.share)
    index = np.flatnonzero(gemm)
    if index.size == 0:
        return
    bad = np.array([bool(n) for n in _culprits(analysis, costs, index)], dtype=bool)
    ns = analysis.trace.column("dur_ns")[costs.rows]
    units, unit = np.unique(costs.math[index], return_inverse=True)
    roof = np.array([device.flop_per_ns(Math(m)) for m in units])[unit]
    busy = np.maximum(ns[index] - options.startup_ns, 0.5 * ns[index])
    reached = costs.flop[index] / np.maximum(busy * roof, 1e-9)
    memory = costs.bytes[index] / device.achievable_bytes_per_ns
    like = ~bad & (costs.flop[index] > options.usual_rate * roof * memory)
    good_rate = _aligned_rate(reached[like], ns[index][like], options.usual_rate)
    bad &= (reached < options.slow_ratio * good_rate) & (ns[index] > 1.5 * memory)
    if not bad.any():
        return
    rows = costs.rows[index[bad]]
    share = busy_share(analysis, rows)
    if share < options.min_share:
        return
    yield _hit(analysis, options, (costs, device), index[bad], (good_rate, share))


def _hit(
    analysis: Analysis,
    options: Thresholds,
    tables: tuple[KernelCosts, Peaks],
    index: IntArray,
    found: tuple[float, float],
) -> Hit:
    costs, device = tables
    good_rate, share = found
    rows = costs.rows[index]
    ns = analysis.trace.column("dur_ns")[rows]
    heaviest = _heaviest(analysis, costs, index)
    sizes = sorted(_culprits(analysis, costs, np.array([heaviest]))[0], reverse=True)
    worst = sizes[0]
    padded = -(-worst // options.pad_to) * options.pad_to
    flop_rate = float(costs.flop[index].sum() / max(ns.sum(), 1)) * 1e9
    shape = " x ".join(str(int(v[heaviest])) for v in (costs.m, costs.k, costs.n))
    spent = per_step_ns(analysis, rows)

    def at(share_of_peak: float) -> Change:
        peak = np.array([device.flop_per_ns(Math(m)) for m in costs.math[index]])
        grown = costs.flop[index] * (padded / worst)
        memory = costs.bytes[index] / device.achievable_bytes_per_ns
        new = np.maximum(grown / (share_of_peak * peak) + options.startup_ns, memory)
        return Change(durations=(rows, shrunk(ns, new)))

    return Hit(
        message=(
            f"Matrix products with a dimension of {worst} ({shape}) reach only "
            f"{rate(flop_rate, 'FLOP')}: rows do not start at multiples of {_LOAD_BYTES} bytes. "
            f"They take {duration(spent)} a step, {percent(share)} of the device's busy time."
        ),
        evidence=(
            Evidence("misaligned_time", spent, "ns"),
            Evidence("dimension", worst, "count"),
            Evidence("achieved", round(flop_rate), "flop_per_s", "derived"),
            Evidence("aligned_rate_of_peak", round(good_rate, 6), "ratio", "derived"),
        ),
        locations=places(analysis, rows, calls=("linear", "matmul", "mm", "bmm", "einsum")),
        fix=Fix(
            summary=f"Pad the dimension of {worst} to {padded}, a multiple of {options.pad_to}.",
            snippet=f"size = -(-{worst} // {options.pad_to}) * {options.pad_to}  # {padded}",
            reference=_GUIDE,
        ),
        gain=analysis.gain(
            at(good_rate / options.spread), at(good_rate), at(min(good_rate * options.spread, 0.85))
        ),
        confidence=0.9,
        claims=extent_of(analysis, rows),
    )


def _aligned_rate(reached: npt.NDArray[np.float64], ns: IntArray, usual: float) -> float:
    """Share of the peak that the aligned products reach, weighted by time; a default for none.

    Of those that arithmetic bounds, not memory.
    """
    long = ns > 20_000
    if long.sum() < 2:
        return usual
    middle = float(np.average(np.minimum(reached[long], 1.0), weights=ns[long]))
    return float(np.clip(middle, 0.5 * usual, 0.8))


def _heaviest(analysis: Analysis, costs: KernelCosts, index: IntArray) -> int:
    """The kernel of the shape that takes most time."""
    ns = analysis.trace.column("dur_ns")[costs.rows[index]]
    shape = np.stack([costs.m[index], costs.n[index], costs.k[index]])
    _, first, which = np.unique(shape, axis=1, return_index=True, return_inverse=True)
    return int(index[first[int(np.bincount(which.ravel(), weights=ns).argmax())]])


def _culprits(analysis: Analysis, costs: KernelCosts, index: IntArray) -> list[tuple[int, ...]]:
    """For each kernel the dimensions whose size makes rows start at odd addresses."""
    trace, rows = analysis.trace, costs.op_row[index]
    columns = ("name_id", "dims_id", "types_id", "strides_id")
    signature = [trace.column(c)[rows].astype(np.int64) for c in columns]
    _, first, which = np.unique(dense(signature), return_index=True, return_inverse=True)
    found = []
    for i in first:
        name = short_name(trace.names[int(signature[0][i])])
        dims = tuple(int(size[index[i]]) for size in (costs.m, costs.n, costs.k))
        dtype = Dtype(int(costs.dtype[index[i]]))
        found.append(_odd_dimensions(name, args_of(trace, int(rows[i])), dtype, dims))
    return [found[int(k)] for k in which]


def _odd_dimensions(name: str, args: Args, dtype: Dtype, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes among m, n, k that are the distance of two rows and no multiple of 16 bytes."""
    if name not in _FACTORS or element_size(dtype) == 0:
        return ()
    per_load = _LOAD_BYTES // element_size(dtype)
    left, m_n_k = _FACTORS[name], dims
    distances = {m_n_k[1]}  # the result is written row by row
    for position in (left, left + 1):
        distances |= _row_distances(args, position)
    return tuple(d for d in sorted(set(m_n_k)) if d in distances and d % per_load and d > 1)


def _row_distances(args: Args, position: int) -> set[int]:
    """Elements from one row (or column) of a factor to the next."""
    strides = args.strides[position] if position < len(args.strides) else []
    shape = args.dims[position] if position < len(args.dims) else []
    if not isinstance(strides, list) or len(strides) < 2 or len(shape) != len(strides):
        return {int(shape[-1])} if isinstance(shape, list) and shape else set()
    last_two = [s for s, n in zip(strides[-2:], shape[-2:], strict=True) if n > 1]
    return {int(max(last_two))} if last_two and max(last_two) > 1 else set()


def _product(t: TraceBuilder, width: int, dur: float) -> None:
    half = ["c10::BFloat16", "c10::BFloat16"]
    for step in range(4):
        at = step * 10_000
        t.step(at, 9_990)
        t.op(
            "aten::mm",
            at + 10,
            12,
            dims=[[8192, 1024], [1024, width]],
            types=half,
            strides=[[1024, 1], [1, 1024]],
        )
        t.kernel("nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN", at + 30, dur, launch_at=at + 14)
        t.sync(at + 40, dur - 5)


def _odd(t: TraceBuilder) -> None:
    _product(t, 50_257, 8_800)


def _padded(t: TraceBuilder) -> None:
    _product(t, 50_304, 9_000)


RULE = Rule(
    code="CP202",
    name="misaligned-gemm-dims",
    class_="compute",
    summary="A dimension of a matrix product is no multiple of 16 bytes, so slow kernels run.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "shapes"}),
    evidence="TS",
    references=(
        _GUIDE,
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    ),
    examples=(
        Example("a vocabulary of 50257", _odd, fires=True),
        Example("a vocabulary padded to 50304", _padded, fires=False),
    ),
)
