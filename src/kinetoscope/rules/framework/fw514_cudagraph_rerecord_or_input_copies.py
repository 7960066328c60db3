"""CUDA graphs are recorded again and again, or fed by copies that cost more than they save.

## What it finds
Graphs that are captured and instantiated in several steady steps; or copies on the device before
each replay that take a tenth of the replay and more.

## Why it matters
Recording a graph runs everything once more and takes the driver milliseconds: it pays only when the
graph is replayed hundreds of times. Inputs that are not at the graph's own addresses are copied
there before each replay.

## How to fix it
Pad inputs to a few sizes, so that a few graphs serve all. Write inputs directly into the graph's
buffers, and mark tensors that do not move (`torch._dynamo.mark_static_address`).

## Limits
Servers record one graph for each batch size at their start: recordings of that are not reported
when it happens in one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Intervals, clip, measure, union
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.trace.kinds import RUNTIME_KINDS, CopyKind, Kind
from kinetoscope.trace.torch_frames import is_graph_capture
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration, percent, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_URL = "https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html"


class Thresholds(Options, frozen=True):
    """When graphs cost more than they should."""

    min_steps: int = 2
    """Steady steps with a capture."""
    min_copies: float = 2.0
    """Copies within the device for each replay."""
    min_copy_share: float = 0.1
    """Their time over that of the replayed kernels."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Look for repeated captures, then for copies before replays."""
    yield from _captures(analysis, options)
    yield from _copies(analysis, options)


def _captures(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    trace = analysis.trace
    rows = analysis.in_steps(analysis.matching(is_graph_capture))
    rows = rows[np.isin(trace.column("kind")[rows], RUNTIME_KINDS)]
    steps = trace.steps.of(trace.column("ts_ns")[rows])
    if np.unique(steps).size < options.min_steps:
        return
    capturing = _extents(analysis, rows, steps)
    per_step = measure(capturing) // analysis.steps_on_host
    yield Hit(
        message=(
            f"CUDA graphs are recorded again in {np.unique(steps).size} of the recorded steps: "
            f"{duration(per_step)} of each step."
        ),
        evidence=(
            Evidence("capture_time", per_step, "ns"),
            Evidence("steps_with_capture", int(np.unique(steps).size), "count"),
        ),
        locations=analysis.locations(rows),
        fix=Fix(
            summary="Give the graph inputs of a few sizes only, and record one graph for each.",
            snippet="x = torch.nn.functional.pad(x, (0, bucket(n) - n))   # 64, 128, 256, ...",
            reference=_URL,
        ),
        gain=analysis.gain(
            Change(host_cut=capturing, host_cut_factor=0.8), Change(host_cut=capturing)
        ),
        confidence=0.9,
        claims=capturing,
    )


def _extents(analysis: Analysis, rows: IntArray, steps: IntArray) -> Intervals:
    """From the first to the last call of each step's capture."""
    ts = analysis.trace.column("ts_ns")[rows]
    end = ts + analysis.trace.column("dur_ns")[rows]
    _, first = np.unique(steps, return_index=True)
    last = np.append(first[1:], rows.size) - 1
    return clip(union(ts[first], np.maximum(end[last], ts[first])), *analysis.times.host_window)


def _copies(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    trace = analysis.trace
    replays = analysis.in_steps(analysis.rows(Kind.GRAPH_LAUNCH))
    if replays.size == 0:
        return
    rows = analysis.in_window(analysis.rows(Kind.COPY))
    rows = rows[trace.column("copy_kind")[rows] == CopyKind.D2D]
    launch = trace.links.launch[rows]
    own = (launch >= 0) & ~np.isin(launch, replays)
    own[own] = trace.column("kind")[launch[own]] == Kind.COPY_CALL
    rows, launch = rows[own], launch[own]
    kernels = analysis.in_window(analysis.rows(Kind.KERNEL))
    replayed = kernels[np.isin(trace.links.launch[kernels], replays)]
    dur = trace.column("dur_ns")
    total, spent = int(dur[replayed].sum()), int(dur[rows].sum())
    few = rows.size < options.min_copies * replays.size
    if few or total == 0 or spent < options.min_copy_share * total:
        return
    nbytes = int(np.maximum(trace.column("bytes")[rows], 0).sum()) // analysis.steps
    each = rows.size / replays.size
    yield Hit(
        message=(
            f"{count(round(each))} copies go before each replay of a graph, "
            f"{size(nbytes)} a step: {percent(spent / total)} of the time of the replays."
        ),
        evidence=(
            Evidence("copies_per_replay", round(each, 1), "count"),
            Evidence("copy_time", spent // analysis.steps, "ns"),
            Evidence("replay_time", total // analysis.steps, "ns"),
        ),
        locations=analysis.locations(rows, calls=("copy_", "clone")),
        fix=Fix(
            summary="Write inputs where the graph reads them, and mark tensors that do not move.",
            snippet="torch._dynamo.mark_static_address(cache)\n"
            "static_input[:n] = tokens   # in place of a new tensor for each call",
            reference=_URL,
        ),
        gain=analysis.gain(
            Change(durations=(rows, dur[rows] // 2)),
            Change(drop_calls=launch, host_cut=analysis.extent(launch)),
        ),
        confidence=0.7,
        claims=analysis.extent(rows),
    )


def _serving(t: TraceBuilder, steps: tuple[int, ...]) -> None:
    for step in range(4):
        at = step * 5_000.0
        t.step(at, 5_000)
        if step in steps:
            t.runtime("cudaStreamBeginCapture", at + 20, 10)
            t.runtime("cudaGraphInstantiateWithFlags", at + 2_000, 1_500)
        t.kernel("gemm", at + 3_700, 1_200, launch_at=at + 3_600, launch="cudaGraphLaunch")


def _each_step(t: TraceBuilder) -> None:
    _serving(t, (0, 1, 2, 3))


def _once(t: TraceBuilder) -> None:
    _serving(t, (1,))


RULE = Rule(
    code="FW514",
    name="cudagraph-rerecord-or-input-copies",
    class_="framework",
    summary="CUDA graphs are recorded again and again, or fed by expensive copies.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device"}),
    evidence="S",
    references=(_URL,),
    examples=(
        Example("a graph recorded in each step", _each_step, fires=True),
        Example("a graph recorded in one step", _once, fires=False),
    ),
)
