"""Shared by the rules about host calls that wait for the device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.phase import trains
from kinetoscope.metrics.waits import Wait, Waits
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray


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


_CALLS = [
    Kind.RUNTIME,
    Kind.LAUNCH,
    Kind.GRAPH_LAUNCH,
    Kind.COPY_CALL,
    Kind.SYNC_CALL,
    Kind.ALLOC_CALL,
    Kind.FREE_CALL,
]
