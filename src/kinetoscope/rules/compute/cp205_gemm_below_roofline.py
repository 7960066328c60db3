"""Matrix products or convolutions stay far below what the device can do.

## What it finds
Large matrix products and convolutions that take much longer than good kernels would (the longer of
arithmetic and traffic at rates that good kernels reach), for a tenth of the busy time or more.

## Why it matters
Good kernels reach 60 to 80 % of the data sheet. Below half, the shape, the layout or the kernel
that the library chose leaves much of the device unused.

## How to fix it
Try other kernels: `torch.compile(mode="max-autotune")`, or TunableOp on AMD
(`PYTORCH_TUNABLEOP_ENABLED=1`). Make thin products thicker (stack small ones, larger batch), and
round dimensions to multiples of 64.

## Limits
The roofline is that of the data sheet at boost clock; power limits keep dense products below it.
Kernels that share the device with others are left out. How much tuning finds is not known before
it has run: nothing is the cautious estimate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.roofline import Roofline
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import (
    alone,
    busy_share,
    extent_of,
    per_step_ns,
    places,
    shrunk,
)
from kinetoscope.trace.kinds import Family
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent, rate

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When slow products are worth a word."""

    min_flop: float = 1e8
    """Smaller products are bound by their start-up (RULES, CP205)."""
    min_ns: int = 20_000
    """Shorter kernels too."""
    below: float = 0.6
    """Share of what good kernels reach on this device (0.8 of the data sheet on an H200, 0.54 on an
    MI300X), below which a product is slow."""
    far_below: float = 0.3
    """Share of that from which on the finding is low: tuning may find nothing."""
    min_share: float = 0.1
    """Share of the device's busy time in such kernels."""
    reached: float = 0.85
    """Share of what good kernels reach that a tuned kernel reaches."""
    startup_ns: int = 3_000
    """What each kernel costs beside its arithmetic."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find slow products and replay them tuned."""
    roof = analysis.roof
    slow = _slow(analysis, roof, options)
    rows = roof.costs.rows[slow]
    if rows.size == 0 or busy_share(analysis, rows) < options.min_share:
        return
    ns = analysis.trace.column("dur_ns")[rows]
    efficiency = float(roof.t_roof_ns[slow].sum() / max(int(ns.sum()), 1))
    achieved = float(roof.costs.flop[slow].sum() / max(int(ns.sum()), 1)) * 1e9
    good = float(roof.achievable_ns[slow].sum() / max(int(ns.sum()), 1))
    share, spent = busy_share(analysis, rows), per_step_ns(analysis, rows)
    best = roof.achievable_ns[slow] / options.reached + options.startup_ns
    yield Hit(
        message=(
            f"{percent(min(share, 1.0))} of the busy time ({duration(spent)} a step) are products "
            f"at {percent(efficiency)} of their roofline, {rate(achieved, 'FLOP')}"
            f"{_largest(roof, slow, ns)}."
        ),
        evidence=(
            Evidence("slow_product_time", spent, "ns"),
            Evidence("busy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("roofline_efficiency", round(efficiency, 6), "ratio", "derived"),
            Evidence("achieved", round(achieved), "flop_per_s", "derived"),
        ),
        locations=places(analysis, rows, calls=("linear", "matmul", "mm", "bmm", "conv2d")),
        fix=Fix(
            summary="Let the compiler try other kernels for these shapes, or make thin products "
            "thicker.",
            snippet='module = torch.compile(module, mode="max-autotune")',
            reference="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
        ),
        gain=analysis.gain(
            Change(),
            Change(durations=(rows, shrunk(ns, (ns + best) / 2))),
            Change(durations=(rows, shrunk(ns, best))),
        ),
        confidence=0.7,
        claims=extent_of(analysis, rows),
        at_most="medium" if good < options.far_below else "low",
    )


def _slow(analysis: Analysis, roof: Roofline, options: Thresholds) -> npt.NDArray[np.bool_]:
    """Kernels of large products below the bound, that have the device to themselves."""
    costs = roof.costs
    ns = analysis.trace.column("dur_ns")[costs.rows]
    family = analysis.trace.column("family")[costs.rows]
    slow = np.isin(family, (Family.GEMM, Family.CONV)) & (ns >= options.min_ns)
    slow &= costs.flop >= options.min_flop * costs.share
    slow &= (roof.achievable_ns >= 0) & (roof.achievable_ns < options.below * ns)
    slow[slow] = alone(analysis, costs.rows[slow])
    return slow


def _largest(roof: Roofline, slow: npt.NDArray[np.bool_], ns: IntArray) -> str:
    """Shape of the product with most time; empty for convolutions."""
    costs = roof.costs
    at = np.flatnonzero(slow)[int(ns.argmax())]
    m, n, k, batch = (int(v[at]) for v in (costs.m, costs.n, costs.k, costs.batch))
    if m < 0:
        return ""
    many = f"{batch} of " if batch > 1 else ""
    return f"; the longest is {many}{m} x {n} x {k}"


def _products(t: TraceBuilder, dur: float) -> None:
    n = 4_096
    for step in range(4):
        at = step * 2_000
        t.step(at, 1_990)
        t.op(
            "aten::mm",
            at + 10,
            12,
            dims=[[n, n], [n, n]],
            types=["c10::BFloat16", "c10::BFloat16"],
        )
        t.kernel("ampere_bf16_s16816gemm_bf16_128x64", at + 30, dur, launch_at=at + 14)
        t.op("aten::relu", at + 40, 12, dims=[[n, n]])
        t.kernel("vectorized_elementwise_kernel", at + 30 + dur, 600, launch_at=at + 44)
        t.sync(at + 60, dur + 580)


def _slow_products(t: TraceBuilder) -> None:
    _products(t, 900)


def _good_products(t: TraceBuilder) -> None:
    _products(t, 200)


RULE = Rule(
    code="CP205",
    name="gemm-below-roofline",
    class_="compute",
    summary="Matrix products or convolutions stay far below what the device can do.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "shapes"}),
    evidence="T",
    references=(
        "https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
        "https://docs.pytorch.org/docs/stable/cuda.tunable.html",
    ),
    examples=(
        Example("a bfloat16 product at 15 % of the roofline", _slow_products, fires=True),
        Example("the same product at 70 %", _good_products, fires=False),
    ),
)
