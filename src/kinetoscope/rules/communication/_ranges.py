"""Host ranges of torch.distributed that a rule looks for, and what was launched inside them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Intervals, empty, points_in, union
from kinetoscope.rules.communication._calls import launches_of
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.kinds import DEVICE_WORK, Family, Kind
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.trace import IntArray


def ranges(analysis: Analysis, test: Callable[[str], bool]) -> IntArray:
    """Outermost nodes whose name passes the test and that begin in the steady steps."""
    trace, tree = analysis.trace, analysis.trace.tree
    if not tree.rows.size:
        return np.empty(0, dtype=np.int64)
    names = trace.name_flags(test)
    if not names.any():
        return np.empty(0, dtype=np.int64)
    flagged = names[trace.column("name_id")[tree.rows]]
    around = nearest(flagged, tree.parent)
    above = np.where(tree.parent >= 0, around[np.maximum(tree.parent, 0)], -1)
    low, high = analysis.times.host_window
    return np.flatnonzero(flagged & (above < 0) & (tree.start >= low) & (tree.start < high))


def steps_with(analysis: Analysis, nodes: IntArray) -> int:
    """In how many steps one of these nodes begins."""
    return int(np.unique(analysis.trace.steps.of(analysis.trace.tree.start[nodes])).size)


def host_time(analysis: Analysis, nodes: IntArray) -> Intervals:
    """Time inside these nodes, as a union."""
    tree = analysis.trace.tree
    return union(tree.start[nodes], tree.end[nodes]) if nodes.size else empty()


def launched_inside(analysis: Analysis, inside: Intervals, *, collectives: bool = True) -> IntArray:
    """Calls within this host time that launched device work, with or without collectives."""
    trace = analysis.trace
    rows = rows_of(trace, *DEVICE_WORK)
    if not collectives:
        rows = np.setdiff1d(rows, analysis.comm.row)
    launch = launches_of(analysis, rows)
    found: IntArray = launch[points_in(inside, trace.column("ts_ns")[launch])]
    return found


def collectives_inside(analysis: Analysis, inside: Intervals) -> IntArray:
    """Positions of the collectives that were called within this host time."""
    comm, trace = analysis.comm, analysis.trace
    launch = trace.links.launch[comm.row]
    at = trace.column("ts_ns")[np.where(launch >= 0, launch, comm.row)]
    return np.flatnonzero(points_in(inside, at) & ((launch >= 0) | (not comm.on_device)))


_LAYERS = (Family.GEMM, Family.CONV, Family.ATTENTION)


def between_layers(analysis: Analysis, positions: IntArray) -> bool:
    """Do layers compute between most of these collectives? Then they carry activations."""
    trace = analysis.trace
    layers = analysis.rows(Kind.KERNEL)
    layers = layers[np.isin(trace.column("family")[layers], _LAYERS)]
    ts, launch = trace.column("ts_ns"), trace.links.launch
    at = np.sort(ts[launch[layers[launch[layers] >= 0]]])
    own = launch[analysis.comm.row[positions]]
    own = np.sort(ts[own[own >= 0]])
    return bool((np.diff(np.searchsorted(at, own)) > 0).mean() > 0.5) if own.size > 1 else False
