"""Weights are moved to the device, or converted, in every request.

## What it finds
Inference in which tensors of the shapes of the model's weights are copied to or from the device, or
converted to another type, in each step.

## Why it matters
Weights are most of a model's bytes. Moving them takes as long as reading the file again over PCIe,
and converting them reads and writes all of them, to use each once.

## How to fix it
Keep the weights on the device and in the type that they are used in: `model.to(device,
torch.bfloat16)` once. If they do not fit, quantise them or share them among devices in place of
sending them in each request (accelerate's `device_map="auto"` does that when memory is short).

## Limits
Weights are told from data by the shapes that layers were called with. Conversions that autocast
makes are FW525's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import args_of, device_ops
from kinetoscope.metrics.intervals import measure, merge
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._surroundings import steady_extent
from kinetoscope.rules.framework._waiting import calls_inside
from kinetoscope.rules.inference._requests import (
    ops_named,
    serves,
    weight_shapes,
)
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration, percent, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When weights in transit are worth a word."""

    min_weights: int = 2
    """Weights a step; one may be a table that is looked up by the program itself."""
    min_share: float = 0.05
    """Host or device time in it as a share of the step."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find copies and conversions of weights, and replay the steps without them."""
    if not serves(analysis):
        return
    ops = _of_weights(analysis)
    steps = analysis.steps_on_host
    if ops.size < options.min_weights * steps:
        return
    calls = calls_inside(analysis, ops)
    work = analysis.get(device_ops)
    mine = np.isin(work.call, calls)
    events = work.rows[mine]
    host, device = steady_extent(analysis, ops), analysis.extent(events)
    moved = events[analysis.trace.column("kind")[events] == Kind.COPY]
    nbytes = int(np.maximum(analysis.trace.column("bytes")[moved], 0).sum()) // steps
    spent = max(measure(host), measure(device)) // steps
    share = spent / max(analysis.step_ns, 1)
    if share < options.min_share or not events.size:
        return
    each = ops.size / steps
    what = f"moved ({size(nbytes)})" if moved.size >= 0.5 * events.size else "converted"
    yield Hit(
        message=(
            f"{count(round(each))} weights are {what} in each step: {duration(spent)}, "
            f"{percent(min(share, 1.0))} of it."
        ),
        evidence=(
            Evidence("weights_per_step", round(each, 1), "count"),
            Evidence("moved", nbytes, "bytes"),
            Evidence("host_time", measure(host) // steps, "ns"),
            Evidence("device_time", measure(device) // steps, "ns"),
        ),
        locations=analysis.locations(ops, calls=("to", "cuda", "half", "bfloat16", "float")),
        fix=Fix(
            summary="Keep the weights on the device, in the type that they are used in.",
            snippet="model = model.to(device, torch.bfloat16).eval()   # once, after loading",
            reference="https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html"
            "#torch.nn.Module.to",
        ),
        gain=analysis.gain(
            Change(host_cut=host, host_cut_factor=0.8, drop_calls=calls),
            Change(host_cut=host, drop_calls=calls),
        ),
        confidence=0.9,
        claims=merge(host, device),
    )


def _of_weights(analysis: Analysis) -> IntArray:
    """Copies and conversions, not made by another operator, of tensors with a weight's shape."""
    trace = analysis.trace
    shapes = weight_shapes(trace)
    rows = analysis.in_steps(ops_named(trace, "to", "_to_copy", "copy_"))
    if not shapes or rows.size == 0:
        return rows[:0]
    rows = rows[trace.tree.outer_ops[trace.tree.node_of[rows]]]
    dims = trace.column("dims_id")[rows]
    _, first, which = np.unique(dims, return_index=True, return_inverse=True)
    hit = np.array([_shape(analysis, int(rows[i])) in shapes for i in first], dtype=bool)
    rows = rows[hit[which]] if first.size else rows
    return rows[_works(analysis, rows)]


def _shape(analysis: Analysis, row: int) -> tuple[int, ...] | None:
    dims = args_of(analysis.trace, row).dims
    return tuple(dims[0]) if dims and isinstance(dims[0], list) and dims[0] else None


def _works(analysis: Analysis, rows: IntArray) -> npt.NDArray[np.bool_]:
    """Which of the operators started anything: `to` does nothing for a tensor in place."""
    ts, dur = analysis.trace.column("ts_ns"), analysis.trace.column("dur_ns")
    calls = np.sort(ts[analysis.rows(Kind.LAUNCH, Kind.COPY_CALL)])
    inside = np.searchsorted(calls, ts[rows] + dur[rows]) - np.searchsorted(calls, ts[rows])
    return np.asarray(inside > 0)


def _serving(t: TraceBuilder, *, moves: bool) -> None:
    for step in range(4):
        at = step * 4_000.0
        t.step(at, 4_000)
        for i in range(4):
            begin = at + 10 + i * 950
            if moves:
                t.op("aten::to", begin, 500, dims=[[1024, 1024]])
                t.copy("HtoD Pageable", 4 << 20, begin + 30, 460, launch_at=begin + 10)
                t.sync(begin + 20, 475)
            else:
                t.op("aten::to", begin, 500, dims=[[64, 1024]])
                t.copy("HtoD Pageable", 4 << 20, begin + 30, 460, launch_at=begin + 10)
                t.sync(begin + 20, 475)
            t.op("aten::linear", begin + 510, 20, dims=[[64, 1024], [1024, 1024]])
            t.kernel("gemm", begin + 530, 300, launch_at=begin + 515)


def _moves(t: TraceBuilder) -> None:
    _serving(t, moves=True)


def _data(t: TraceBuilder) -> None:
    _serving(t, moves=False)


RULE = Rule(
    code="IN620",
    name="weights-moved-or-recast-per-request",
    class_="memory",
    summary="Weights are moved to the device, or converted, in every request.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "ops", "shapes"}),
    references=("https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html",),
    examples=(
        Example("four weights sent to the device in each request", _moves, fires=True),
        Example("inputs sent to the device in each request", _data, fires=False),
    ),
)
