"""Which events lie inside host ranges or operators of some name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.device_ops import DeviceOps
from kinetoscope.metrics.intervals import Intervals, union
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray, Trace

Flags = npt.NDArray[np.bool_]


def nearest_named(trace: Trace, test: Callable[[str], bool]) -> IntArray:
    """For each call-tree node itself or the nearest one around it that passes; -1: none."""
    chosen = trace.tree.named(test)
    if not chosen.any():  # the usual case, and the search costs on long recordings
        return np.full(chosen.size, -1, dtype=np.int64)
    return nearest(chosen, trace.tree.parent)


def owner_of(work: DeviceOps, around: IntArray) -> IntArray:
    """Entry of `around` (one a call-tree node) for the launch of each device event; -1: none."""
    node = work.trace.links.node[work.rows]
    if around.size == 0:
        return np.full(work.rows.size, -1, dtype=np.int64)
    return np.where(node >= 0, around[np.maximum(node, 0)], -1)


def outermost_ops(trace: Trace, chosen: Flags) -> IntArray:
    """Of these call-tree nodes the operators that have none of the others around them."""
    tree = trace.tree
    ops = chosen & (tree.kind == Kind.CPU_OP)
    around = nearest(ops, tree.parent)
    above = np.where(tree.parent >= 0, around[np.maximum(tree.parent, 0)], -1)
    return np.flatnonzero(ops & (above < 0))


def extent_of_nodes(trace: Trace, nodes: IntArray) -> Intervals:
    """Host time of call-tree nodes."""
    return union(trace.tree.start[nodes], trace.tree.end[nodes])


_FILLED = 0.4
"""Part of a Python frame that its calls take at least, where it is there for them alone."""


def host_with_callers(work: DeviceOps, which: IntArray) -> Intervals:
    """Host time of all that is there only to launch these device events.

    An operator, a module or a function goes with its last launch. A function that does much of its
    own besides stays.
    """
    node_of, thread = work.trace.links.node[work.rows], work.thread_of_call
    which = which[node_of[which] >= 0]
    found = [np.empty(0, dtype=np.int64)]
    for one in np.unique(thread[which]).tolist():
        mine = which[thread[which] == one]
        every = np.sort(work.at[(thread == one) & (work.call >= 0)])
        node = np.unique(node_of[mine])
        while node.size:
            goes = _for_them_alone(work.trace, node, every, np.sort(work.at[mine]))
            found.append(node[~goes])
            node = np.unique(work.trace.tree.parent[node[goes]])
    return extent_of_nodes(work.trace, np.concatenate(found))


def _for_them_alone(trace: Trace, node: IntArray, every: IntArray, chosen: IntArray) -> Flags:
    """Which of these nodes lie in one that launches nothing but the chosen events."""
    tree = trace.tree
    up, which = np.unique(tree.parent[node], return_inverse=True)
    start, end = tree.start[np.maximum(up, 0)], tree.end[np.maximum(up, 0)]
    inside = np.bincount(which, tree.end[node] - tree.start[node])
    kind = tree.kind[np.maximum(up, 0)]
    filled = np.isin(kind, (Kind.PYTHON, Kind.MODULE)) & (inside >= _FILLED * (end - start))
    alone = _count(every, start, end) == _count(chosen, start, end)
    return np.asarray(((up >= 0) & alone & (filled | (kind == Kind.CPU_OP)))[which])


def _count(moments: IntArray, start: IntArray, end: IntArray) -> IntArray:
    """How many of these moments lie in each stretch."""
    return np.asarray(np.searchsorted(moments, end) - np.searchsorted(moments, start))
