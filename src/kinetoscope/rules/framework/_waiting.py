"""Shared by the rules about host calls that wait for the device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Intervals, union
from kinetoscope.metrics.phase import trains
from kinetoscope.metrics.waits import Wait, Waits
from kinetoscope.trace.kinds import Family, Kind
from kinetoscope.trace.op_names import op_families
from kinetoscope.trace.trace import IntArray, Trace


def avoidable(analysis: Analysis, *reasons: Wait) -> Waits:
    """Waits of these reasons in the steady steps, without those for the answer of a request."""
    waits = analysis.waits
    ts = analysis.trace.column("ts_ns")[waits.call]
    low, high = analysis.times.host_window
    inside = (ts >= low) & (ts < high) & np.isin(waits.reason, reasons)
    return waits.where(inside & ~_answers(analysis, waits))


def _answers(analysis: Analysis, waits: Waits) -> npt.NDArray[np.bool_]:
    """Waits at the end of a step of inference: somebody is waiting for that result.

    They end the step when no device work is launched after them.
    """
    trace = analysis.trace
    if waits.call.size == 0 or analysis.get(trains):
        return np.zeros(waits.call.size, dtype=bool)
    ts = trace.column("ts_ns")
    edges = trace.steps.edges
    work = np.sort(ts[analysis.rows(Kind.LAUNCH, Kind.GRAPH_LAUNCH, Kind.COPY_CALL)])
    begin = ts[waits.call]
    end = edges[np.minimum(np.searchsorted(edges, begin, side="right"), edges.size - 1)]
    later = np.searchsorted(work, end, side="left") - np.searchsorted(work, begin, side="right")
    return np.asarray(later <= 0)


def blocked_per_step(analysis: Analysis, waits: Waits) -> int:
    """Time that the host spends inside the waiting calls, ns a step."""
    return int(analysis.trace.column("dur_ns")[waits.call].sum()) // analysis.steps_on_host


def calls_inside(analysis: Analysis, ops: IntArray) -> IntArray:
    """Rows of all runtime calls that lie inside these operators."""
    tree, trace = analysis.trace.tree, analysis.trace
    flag = np.zeros(tree.rows.size, dtype=bool)
    node = tree.node_of[ops]
    flag[node[node >= 0]] = True
    inside = flag.copy()
    # Children come after their parents in tree order, so one pass per level is enough.
    while True:
        below = inside | ((tree.parent >= 0) & inside[np.maximum(tree.parent, 0)])
        if (below == inside).all():
            break
        inside = below
    rows = tree.rows[inside]
    return np.asarray(rows[np.isin(trace.column("kind")[rows], _CALLS)], dtype=np.int64)


def loop_bodies(
    analysis: Analysis, ops: IntArray, *, most_launches: int | None = None
) -> Intervals:
    """Host time between consecutive operators `ops` of one function and step: a loop's body.

    Args:
        analysis: of the recording.
        ops: rows of operators in time order.
        most_launches: leave out bodies with more launches than this, or with matrix products:
            what they compute cannot be done for all iterations at once.
    """
    trace = analysis.trace
    ts, dur = trace.column("ts_ns")[ops], trace.column("dur_ns")[ops]
    frame = analysis.locator.frames(ops)
    name = np.where(frame >= 0, trace.tree.rows[np.maximum(frame, 0)], -1)
    step = trace.steps.of(ts)
    same = (step[1:] == step[:-1]) & (name[1:] == name[:-1])
    start, end = (ts + dur)[:-1][same], ts[1:][same]
    if most_launches is not None and start.size:
        small = _count(trace, analysis.rows(Kind.LAUNCH), start, end) <= most_launches
        small &= _count(trace, _heavy(analysis), start, end) == 0
        start, end = start[small], end[small]
    return union(start, end)


def part_of(intervals: Intervals, share: float) -> Intervals:
    """The first `share` of each interval."""
    start, end = intervals
    return start, start + ((end - start) * share).astype(np.int64)


def _count(trace: Trace, rows: IntArray, start: IntArray, end: IntArray) -> IntArray:
    ts = np.sort(trace.column("ts_ns")[rows])
    return np.searchsorted(ts, end) - np.searchsorted(ts, start)


def _heavy(analysis: Analysis) -> IntArray:
    family = op_families(analysis.trace)[analysis.trace.column("name_id")]
    return np.flatnonzero(
        np.isin(family, (Family.GEMM, Family.CONV, Family.ATTENTION, Family.RNN))
        & (analysis.trace.column("kind") == Kind.CPU_OP)
    )


_CALLS = [
    Kind.RUNTIME,
    Kind.LAUNCH,
    Kind.GRAPH_LAUNCH,
    Kind.COPY_CALL,
    Kind.SYNC_CALL,
    Kind.ALLOC_CALL,
    Kind.FREE_CALL,
]
