"""Host time by what surrounds it, and what of it the recording itself did not cost."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Intervals, clip, measure, union
from kinetoscope.metrics.overhead import event_overhead_ns
from kinetoscope.metrics.stretches import launching_threads
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray, Trace

Flags = npt.NDArray[np.bool_]

LEAST_NET = 0.1
"""Part of a stretch that is the program's at least, however many events were recorded in it."""


def within(trace: Trace, flag: Flags) -> Flags:
    """Which nodes are flagged or lie inside a flagged one."""
    if not flag.any():
        return flag
    return np.asarray(nearest(flag, trace.tree.parent) >= 0)


def outermost(trace: Trace, flag: Flags) -> IntArray:
    """Flagged nodes that lie inside no other flagged one."""
    parent = trace.tree.parent
    above = np.where(parent >= 0, within(trace, flag)[np.maximum(parent, 0)], False)
    return np.flatnonzero(flag & ~above)


def steady_extent(analysis: Analysis, rows: IntArray) -> Intervals:
    """Union of these host events, inside the steady steps."""
    return clip(analysis.extent(rows), *analysis.times.host_window)


def own_stretches(analysis: Analysis, flag: Flags) -> Intervals:
    """Stretches of the launching threads whose innermost event is a flagged node."""
    activity, tree = analysis.activity, analysis.trace.tree
    mine = np.isin(activity.thread, launching_threads(analysis.trace)) & (activity.row >= 0)
    mine &= flag[tree.node_of[np.maximum(activity.row, 0)]] if flag.size else False
    stretches = union(activity.start[mine], activity.end[mine])
    return clip(stretches, *analysis.times.host_window)


def net_ns(analysis: Analysis, stretches: Intervals) -> int:
    """Length of stretches without the modelled cost of recording the events inside, ns a step."""
    trace = analysis.trace
    cost = event_overhead_ns(trace)
    use = np.flatnonzero((cost > 0) & np.isin(trace.column("thread"), launching_threads(trace)))
    ts = trace.column("ts_ns")[use]
    total = np.concatenate(([0.0], np.cumsum(cost[use])))
    spent = total[np.searchsorted(ts, stretches[1])] - total[np.searchsorted(ts, stretches[0])]
    length = measure(stretches)
    return int(max(length - spent.sum(), LEAST_NET * length)) // analysis.steps_on_host


def python_only(analysis: Analysis, flag: Flags) -> Intervals:
    """Stretches inside flagged nodes in which Python runs, or the flagged node itself."""
    kind = analysis.trace.tree.kind
    python = np.isin(kind, (Kind.PYTHON, Kind.MODULE))
    return own_stretches(analysis, (within(analysis.trace, flag) & python) | flag)
