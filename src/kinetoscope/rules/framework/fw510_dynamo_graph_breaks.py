"""`torch.compile` cuts the program into pieces, with eager Python between them.

## What it finds
Several compiled regions a step that are parts of one function: Dynamo's names for the code after
a break (`torch_dynamo_resume_in_forward_at_42`), or different code objects compiled in a row
inside one compiled call.

## Why it matters
Each break costs the guards and wrappers of one more region, runs what lies between them eagerly,
and keeps Inductor from fusing across it. A break that reads a value (`print`, `.item()`) also
waits for the device.

## How to fix it
`torch.compile(model, fullgraph=True)` turns the first break into an error that names its line;
`TORCH_LOGS=graph_breaks` lists all of them. Take prints, logging and `.item()` out of the
function, write `torch.where` or `torch.cond` for `if` on tensors, or set
`torch._dynamo.config.capture_scalar_outputs = True`.

## Limits
A model whose blocks are compiled one by one (regional compilation) repeats the same region and
is not reported. Hooks of DDP and FSDP break on purpose. How much fusion is lost is not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.chains import pointwise_chains
from kinetoscope.metrics.device_ops import device_ops
from kinetoscope.metrics.intervals import (
    Coverage,
    Intervals,
    clip,
    measure,
    merge,
    points_in,
    subtract,
    union,
)
from kinetoscope.metrics.waits import Wait
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Location
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._compiling import Regions, glue, regions
from kinetoscope.rules.framework._waiting import avoidable
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.compiled_frames import resume_point
from kinetoscope.trace.frames import is_graph_call
from kinetoscope.trace.kinds import RUNTIME_KINDS, Kind
from kinetoscope.trace.trace import IntArray, Trace
from kinetoscope.units import duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_URL = (
    "https://docs.pytorch.org/docs/main/user_guide/torch_compiler/compile/"
    "programming_model.fullgraph_true.html"
)


class Thresholds(Options, frozen=True):
    """When breaks are worth a word."""

    min_regions: int = 2
    """Different regions a step, when Dynamo's resume functions are in the recording."""
    min_unnamed: int = 3
    """The same without stacks, where two compiled functions look like one with a break."""
    cautious: float = 0.4
    """Part of the time between the regions that goes away at the cautious end."""
    likely: float = 0.8
    """Part that goes away at the likely one."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Count regions, and replay the steps with one region instead."""
    found = _steady(analysis)
    if found.row.size == 0:
        return
    steps = analysis.steps_on_host
    resumed = analysis.get(_resume_points)
    different = np.unique(found.frame).size
    if different < (options.min_regions if resumed else options.min_unnamed):
        return
    per_step = found.row.size / steps
    between = merge(_between(analysis, found), _inside(analysis, found))
    extra = _extra_glue(analysis, found)
    breaks = max(round(per_step * (1 - 1 / different)), 1)
    where = f", first in `{resumed[0][0]}` at line {resumed[0][1]}" if resumed else ""
    gone = merge(between, extra)
    yield Hit(
        message=(
            f"The compiled program runs as {per_step:,.0f} regions a step instead of one "
            f"({breaks} graph breaks{where}); what lies between them takes "
            f"{duration(measure(between) // steps)} of each step on the host."
        ),
        evidence=(
            Evidence("regions_per_step", round(per_step, 1), "count"),
            Evidence("different_regions", int(different), "count"),
            Evidence("between_time", measure(between) // steps, "ns"),
        ),
        locations=_places(analysis, found),
        fix=Fix(
            summary="Find the breaks with fullgraph=True or TORCH_LOGS=graph_breaks and take "
            "prints, `.item()` and unsupported calls out of the compiled function.",
            snippet="model = torch.compile(model, fullgraph=True)",
            reference=_URL,
        ),
        gain=analysis.gain(*_changes(analysis, gone, options)),
        confidence=0.9 if resumed else 0.4,
        claims=merge(gone, _eager_kernels(analysis, gone)),
    )


def _eager_kernels(analysis: Analysis, between: Intervals) -> Intervals:
    """Device time of what is launched between the regions: compiled, it is part of them."""
    work = analysis.get(device_ops)
    inside = (work.call >= 0) & points_in(between, work.at)
    return analysis.extent(work.rows[inside])


def _changes(
    analysis: Analysis, gone: Intervals, options: Thresholds
) -> tuple[Change, Change, Change]:
    """The pieces as one: their kernels stay; eager pointwise kernels between them are fused.

    At the cautious end the device does the same work as before; likely each run of pointwise
    kernels becomes one, and at best it disappears in a kernel that is there already.
    """
    waits = avoidable(analysis, Wait.SCALAR, Wait.SHAPE, Wait.EXPLICIT)
    one = merge(gone, _wrappers(analysis))
    chains = pointwise_chains(analysis.get(device_ops), moves=True)
    at = analysis.trace.column("ts_ns")[np.maximum(chains.work.call[chains.members], 0)]
    mine = Coverage(gone).between(at, at + 1) > 0
    members, ns = chains.members[mine], chains.work.ns[chains.members[mine]]
    rows, calls = chains.work.rows[members], chains.work.call[members]
    first = np.append(True, np.diff(chains.chain[mine]) > 0)[: members.size]
    fused = np.where(first, chains.longest_ns()[chains.chain[mine]], 0)
    dropped = np.concatenate((waits.calls, calls[calls >= 0]))
    return (
        Change(host_cut=gone, host_cut_factor=options.cautious),
        Change(
            host_cut=one,
            host_cut_factor=options.likely,
            unblock=waits.calls,
            durations=(rows, np.minimum(fused, ns.sum())),
        ),
        Change(host_cut=one, unblock=waits.calls, drop_calls=dropped),
    )


def _wrappers(analysis: Analysis) -> Intervals:
    """Time in all graphs but the first of each step that goes into no operator or launch.

    One graph checks and allocates once, whatever the number of its kernels.
    """
    trace = analysis.trace
    calls = analysis.in_steps(analysis.matching(is_graph_call))
    first = np.unique(trace.steps.of(trace.column("ts_ns")[calls]), return_index=True)[1]
    launching = analysis.rows(Kind.CPU_OP, *RUNTIME_KINDS)
    known = trace.tree.node_of[launching] >= 0
    inside = nearest(np.isin(trace.tree.rows, calls), trace.tree.parent)
    launching = launching[known][inside[trace.tree.node_of[launching[known]]] >= 0]
    return subtract(analysis.extent(np.delete(calls, first)), analysis.extent(launching))


def _inside(analysis: Analysis, found: Regions) -> Intervals:
    """Host time in regions with further regions inside, but not in compiled graphs.

    A region calls another one only where a break divides it: the code after the break is called
    by the code before it (torch 2.9 and later).
    """
    tree = analysis.trace.tree
    node = tree.node_of[found.row]
    is_region = np.zeros(tree.rows.size, dtype=bool)
    is_region[node[node >= 0]] = True
    up = np.where(tree.parent[node] >= 0, tree.parent[node], 0)
    around = np.where(tree.parent[node] >= 0, nearest(is_region, tree.parent)[up], -1)
    divided = np.unique(around[around >= 0])
    return subtract(
        analysis.extent(tree.rows[divided]), analysis.extent(analysis.matching(is_graph_call))
    )


def _steady(analysis: Analysis) -> Regions:
    """The outermost regions of the steady steps."""
    found = analysis.get(regions)
    low, high = analysis.times.host_window
    ts = analysis.trace.column("ts_ns")[found.row]
    inside = (ts >= low) & (ts < high)
    return Regions(found.row[inside], found.frame[inside], found.version[inside])


def _resume_points(trace: Trace) -> list[tuple[str, int]]:
    """Functions and lines of breaks, where stacks or ranges carry Dynamo's names."""
    found = {point for name in trace.names if (point := resume_point(name)) is not None}
    return sorted(found, key=lambda point: point[1])


def _between(analysis: Analysis, found: Regions) -> Intervals:
    """Host time between consecutive regions of a step that are not the same code."""
    trace = analysis.trace
    start = trace.column("ts_ns")[found.row]
    end = start + trace.column("dur_ns")[found.row]
    step = trace.steps.of(start)
    other = (step[1:] == step[:-1]) & (found.frame[1:] != found.frame[:-1])
    holes = union(end[:-1][other], start[1:][other])
    return clip(subtract(holes, analysis.extent(found.row)), *analysis.times.host_window)


def _extra_glue(analysis: Analysis, found: Regions) -> Intervals:
    """Lookups, guards and wrappers of all regions but the first of each step."""
    trace = analysis.trace
    rows = analysis.in_steps(analysis.get(glue))
    if rows.size == 0:
        return union(rows, rows)
    first = np.unique(trace.steps.of(trace.column("ts_ns")[found.row]), return_index=True)[1]
    upto = trace.column("ts_ns")[found.row[first]] + trace.column("dur_ns")[found.row[first]]
    step = trace.steps.of(trace.column("ts_ns")[rows])
    ends = np.zeros(max(trace.steps.count, 1), dtype=np.int64)
    known = trace.steps.of(trace.column("ts_ns")[found.row[first]])
    ends[known] = upto
    return analysis.extent(rows[trace.column("ts_ns")[rows] >= ends[step]])


def _places(analysis: Analysis, found: Regions) -> tuple[Location, ...]:
    trace, tree = analysis.trace, analysis.trace.tree
    frames = np.flatnonzero(
        np.array([resume_point(n) is not None for n in trace.names] + [False])[
            trace.column("name_id")
        ]
        & (trace.column("kind") == Kind.PYTHON)
    )
    node = tree.node_of[frames]
    above: IntArray = np.where(node >= 0, tree.parent[np.maximum(node, 0)], -1)
    rows = tree.rows[above[above >= 0]]
    return (analysis.locations(rows) if rows.size else ()) or analysis.locations(found.row)


def _breaks(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 2_000.0
        t.step(at, 2_000)
        t.python("model.py(10): forward", at + 5, 1_990)
        for i in range(3):
            begin = at + 20 + i * 650
            if i:
                t.python(f"model.py(10): torch_dynamo_resume_in_forward_at_{14 + i}", begin, 600)
            t.op("TorchDynamo Cache Lookup", begin + 5, 30)
            t.op(f"Torch-Compiled Region: {i}/0", begin + 40, 100)
            t.kernel("triton_poi_fused_0", begin + 80, 40, launch_at=begin + 60)


def _regional(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 2_000.0
        t.step(at, 2_000)
        for i in range(6):
            begin = at + 20 + i * 300
            t.op("Torch-Compiled Region: 0/0", begin + 40, 100)
            t.kernel("triton_poi_fused_0", begin + 80, 40, launch_at=begin + 60)


RULE = Rule(
    code="FW510",
    name="dynamo-graph-breaks",
    class_="framework",
    summary="torch.compile cuts the program into pieces, with eager Python between them.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops"}),
    evidence="ET",
    references=(_URL,),
    examples=(
        Example("two breaks in one function", _breaks, fires=True),
        Example("one block compiled once and called six times", _regional, fires=False),
    ),
)
