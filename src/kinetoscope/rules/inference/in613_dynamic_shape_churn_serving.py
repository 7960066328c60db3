"""Every request has another shape, and new shapes cost time.

## What it finds
Inference with more than five different shapes of the first layer's input, in which several requests
compile, record graphs, load code or take memory from the driver.

## Why it matters
Compiled code, graphs, chosen algorithms and blocks of memory belong to one shape. A server that
sees ever new ones never gets warm.

## How to fix it
Pad requests to a few sizes and warm those up; compile with `dynamic=True`; record one graph for
each size.

## Limits
A preview. A server that handles many shapes at no cost is not reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._surroundings import steady_extent
from kinetoscope.rules.inference._requests import WEIGHT_OF, ops_named, serves
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.torch_frames import is_code_loading, is_graph_capture
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_URL = "https://docs.pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html"


class Thresholds(Options, frozen=True):
    """When shapes churn."""

    min_shapes: int = 6
    """Different shapes of the first layer's arguments."""
    min_steps: int = 2
    """Requests with work that only new shapes need."""
    min_share: float = 0.02
    """That work as a share of the step."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Count shapes, and the work that comes with new ones."""
    if not serves(analysis):
        return
    shapes, first = _first_shapes(analysis)
    if shapes < options.min_shapes:
        return
    cold = analysis.in_steps(
        np.unique(
            np.concatenate(
                (
                    analysis.rows(Kind.COMPILE, Kind.ALLOC_CALL),
                    analysis.matching(lambda n: is_code_loading(n) or is_graph_capture(n)),
                )
            )
        )
    )
    steps = np.unique(analysis.trace.steps.of(analysis.trace.column("ts_ns")[cold]))
    work = steady_extent(analysis, cold)
    per_step = measure(work) // analysis.steps_on_host
    few = steps.size < options.min_steps
    if few or per_step < options.min_share * analysis.step_ns:
        return
    yield Hit(
        message=(
            f"Requests came in {count(shapes)} shapes, and {count(int(steps.size))} of them "
            f"compiled, loaded code or took memory for theirs: {duration(per_step)} a request."
        ),
        evidence=(
            Evidence("shapes", shapes, "count"),
            Evidence("requests_with_cold_work", int(steps.size), "count"),
            Evidence("cold_work", per_step, "ns"),
        ),
        locations=analysis.locations(first),
        fix=Fix(
            summary="Pad requests to a few sizes and warm those up, or compile for dynamic shapes.",
            snippet="size = next(s for s in (64, 128, 256, 512) if s >= n)\n"
            "x = torch.nn.functional.pad(x, (0, size - n))",
            reference=_URL,
        ),
        gain=analysis.gain(Change(host_cut=work, host_cut_factor=0.6), Change(host_cut=work)),
        confidence=0.4,
        claims=work,
    )


def _first_shapes(analysis: Analysis) -> tuple[int, IntArray]:
    """Number of different argument shapes of each step's first layer, and those layers."""
    trace = analysis.trace
    rows = ops_named(trace, *WEIGHT_OF)
    rows = rows[trace.column("dims_id")[rows] >= 0]
    step = trace.steps.of(trace.column("ts_ns")[rows])
    rows, step = rows[step >= 0], step[step >= 0]
    _, at = np.unique(step, return_index=True)
    first = rows[at]
    return int(np.unique(trace.column("dims_id")[first]).size), first


def _server(t: TraceBuilder, *, churns: bool) -> None:
    for step in range(8):
        at = step * 4_000.0
        t.step(at, 4_000)
        n = 64 + (step if churns else 0)
        t.op("aten::linear", at + 10, 1_100, dims=[[n, 256], [256, 256], [256]])
        if churns:
            t.runtime("cudaMalloc", at + 20, 1_000)
        t.kernel("gemm", at + 1_130, 2_850, launch_at=at + 1_100)


def _churns(t: TraceBuilder) -> None:
    _server(t, churns=True)


def _one_shape(t: TraceBuilder) -> None:
    _server(t, churns=False)


RULE = Rule(
    code="IN613",
    name="dynamic-shape-churn-serving",
    class_="framework",
    summary="Every request has another shape, and new shapes cost time.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops", "shapes"}),
    evidence="L",
    references=(_URL,),
    examples=(
        Example("eight shapes, each of which takes new memory", _churns, fires=True),
        Example("one shape", _one_shape, fires=False),
    ),
    preview=True,
)
