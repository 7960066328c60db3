"""Inference on the CPU computes in 32 bits.

## What it finds
A recording without a device in which matrix products and convolutions of 32-bit inputs take at
least half of the step.

## Why it matters
CPUs with AMX or AVX-512 BF16 multiply bfloat16 two to eight times as fast, and 8-bit integers
twice as fast again; all of them read half or a quarter of the bytes.

## How to fix it
`torch.autocast("cpu", torch.bfloat16)`, or dynamic quantisation of linear layers with torchao.

## Limits
A hint: a recording does not show what the CPU can do, nor what precision the answers need. On a CPU
without such units bfloat16 is slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import args_of
from kinetoscope.metrics.intervals import measure
from kinetoscope.metrics.precision import Dtype
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._surroundings import steady_extent
from kinetoscope.rules.inference._requests import ops_named, serves
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_PRODUCTS = ("addmm", "mm", "bmm", "mkldnn_convolution", "convolution", "mkldnn_linear")


class Thresholds(Options, frozen=True):
    """When precision is worth a hint."""

    min_share: float = 0.5
    """Products of 32 bits as a share of the step."""
    saved: tuple[float, float, float] = (0.0, 0.4, 0.75)
    """Part of their time that half precision saves: none without the units, three quarters with
    AMX."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Add up the products of 32 bits."""
    if analysis.device is not None or not serves(analysis):
        return
    trace = analysis.trace
    rows = analysis.in_steps(ops_named(trace, *_PRODUCTS))
    ids = trace.column("types_id")[rows]
    _, first, which = np.unique(ids, return_index=True, return_inverse=True)
    single = [args_of(trace, int(rows[i])).dtype(0) is Dtype.FP32 for i in first]
    rows = rows[np.array(single, dtype=bool)[which]] if first.size else rows
    spent = steady_extent(analysis, rows)
    per_step = measure(spent) // analysis.steps_on_host
    share = per_step / max(analysis.step_ns, 1)
    if rows.size == 0 or share < options.min_share:
        return
    yield Hit(
        message=(
            f"Products of 32-bit numbers on the CPU take {duration(per_step)} of each step, "
            f"{percent(min(share, 1.0))} of it; a CPU with units for bfloat16 does them faster."
        ),
        evidence=(
            Evidence("product_time", per_step, "ns"),
            Evidence("product_share", round(min(share, 1.0), 4), "ratio", "derived"),
        ),
        locations=analysis.locations(rows),
        fix=Fix(
            summary="Try bfloat16 if `lscpu` lists amx_bf16 or avx512_bf16, and measure.",
            snippet='with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():\n'
            "    output = model(x)",
            reference="https://docs.pytorch.org/docs/stable/amp.html",
        ),
        gain=analysis.gain(
            *(Change(host_cut=spent, host_cut_factor=part) for part in options.saved)
        ),
        confidence=0.4,
        claims=spent,
        at_most="low",
    )


def _serving(t: TraceBuilder, dtype: str) -> None:
    for step in range(4):
        at = step * 1_000.0
        t.step(at, 1_000)
        for i in range(3):
            begin, dims = at + 10 + i * 300, [[256], [64, 256], [256, 256]]
            t.op("aten::addmm", begin, 250, dims=dims, types=[dtype] * 3)


def _single(t: TraceBuilder) -> None:
    _serving(t, "float")


def _half(t: TraceBuilder) -> None:
    _serving(t, "c10::BFloat16")


RULE = Rule(
    code="IN608",
    name="cpu-fp32-where-bf16-int8",
    class_="compute",
    summary="Inference on the CPU computes in 32 bits.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops", "shapes"}),
    evidence="L",
    references=("https://docs.pytorch.org/docs/stable/amp.html",),
    examples=(
        Example("products of 32 bits in 75 % of the step", _single, fires=True),
        Example("the same in bfloat16", _half, fires=False),
    ),
    preview=True,
)
