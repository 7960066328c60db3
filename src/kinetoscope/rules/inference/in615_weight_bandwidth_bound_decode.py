"""Decoding reads the weights as fast as the memory can deliver them: it is at its floor.

## What it finds
Inference whose matrix products have at most sixteen rows, move mostly weights, and reach 60 % or
more of the device's memory bandwidth.

## Why it matters
For one token all weights are read once and hardly computed with. Faster kernels, graphs or a
faster host gain nothing any more; only fewer bytes for each token do.

## How to fix it
Read the weights for more requests at a time (a larger batch), make them smaller (8 or 4 bits,
weight only), or accept several tokens for each read (speculative decoding).

## Limits
What quantisation costs in quality is not known here. With the batch size free, IN603 says more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.cost import KernelCosts, kernel_costs
from kinetoscope.metrics.precision import Dtype, element_size
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import busy_share, extent_of, peaks, per_step_ns
from kinetoscope.rules.inference._requests import serves
from kinetoscope.units import percent, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When products are at the roof of the memory."""

    most_rows: int = 16
    """Rows of the left factor: tokens that share one read of the weights."""
    min_bandwidth: float = 0.6
    """Part of the data sheet's bandwidth; good kernels reach 0.85."""
    min_weights: float = 0.8
    """Part of the traffic that is weights."""
    min_share: float = 0.3
    """Part of the device's busy time in these products."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Compare the traffic of thin products with the device's bandwidth."""
    device = peaks(analysis)
    if device is None or not serves(analysis):
        return
    costs = analysis.get(kernel_costs)
    thin = _thin(costs, options)
    rows = analysis.in_window(costs.rows[thin])
    kept = thin & np.isin(costs.rows, rows)
    ns = analysis.trace.column("dur_ns")[costs.rows[kept]]
    traffic = float(costs.bytes[kept].sum())
    speed = traffic / max(int(ns.sum()), 1)
    share = busy_share(analysis, rows)
    if share < options.min_share or speed < options.min_bandwidth * device.bandwidth_gbps:
        return
    each = int(traffic) // analysis.steps
    yield Hit(
        message=(
            f"Decoding reads {size(each)} of weights a step at "
            f"{percent(min(speed / device.bandwidth_gbps, 1.0))} of the memory's bandwidth "
            f"({percent(min(share, 1.0))} of the device's work): only fewer bytes for each token "
            "make it faster."
        ),
        evidence=(
            Evidence("bytes_per_step", each, "bytes", "derived"),
            Evidence("bandwidth", round(speed * 1e9), "bytes_per_s", "derived"),
            Evidence("product_time", per_step_ns(analysis, rows), "ns"),
            Evidence("rows_of_the_product", int(costs.m[kept].max(initial=0)), "count"),
        ),
        locations=analysis.locations(rows),
        fix=Fix(
            summary="Batch more requests, or store the weights in 8 or 4 bits.",
            snippet="from torchao.quantization import Int8WeightOnlyConfig, quantize_\n"
            "quantize_(model, Int8WeightOnlyConfig())",
            reference="https://docs.pytorch.org/ao/stable/",
        ),
        confidence=0.7,
        claims=extent_of(analysis, rows),
        at_most="info",
        keep=True,
    )


def _thin(costs: KernelCosts, options: Thresholds) -> np.ndarray:
    """Products of few rows with one weight, most of whose traffic is that weight."""
    known = (costs.m > 0) & (costs.m <= options.most_rows) & (costs.batch <= 1) & costs.known
    sizes = np.array([element_size(Dtype(int(t))) for t in costs.dtype], dtype=np.float64)
    weight = costs.n.astype(np.float64) * costs.k * sizes
    return np.asarray(known & (weight >= options.min_weights * np.maximum(costs.bytes, 1.0)))


def _decoding(t: TraceBuilder, gemm_us: float) -> None:
    for step in range(4):
        at = step * 4_000.0
        t.step(at, 4_000)
        for i in range(10):
            begin = at + 10 + i * 20
            t.op("aten::mm", begin, 15, dims=[[1, 8192], [8192, 8192]])
            t.kernel("gemv_kernel", at + 30 + i * 390, gemm_us, launch_at=begin + 5)


def _at_the_roof(t: TraceBuilder) -> None:
    _decoding(t, 70)


def _far_from_it(t: TraceBuilder) -> None:
    _decoding(t, 350)


RULE = Rule(
    code="IN615",
    name="weight-bandwidth-bound-decode",
    class_="memory",
    summary="Decoding reads the weights as fast as the memory delivers them.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "shapes"}),
    references=("https://docs.pytorch.org/ao/stable/",),
    examples=(
        Example("products of one row at 3.8 TB/s", _at_the_roof, fires=True),
        Example("the same products at 0.8 TB/s", _far_from_it, fires=False),
    ),
)
