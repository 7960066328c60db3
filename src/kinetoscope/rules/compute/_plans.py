"""Calls in which cuDNN or MIOpen looks for an algorithm before it can run one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Intervals, union
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray, Trace

_LIBRARIES = ("cudnn", "miopen")
_DIFFERENTIATED = ("aten::convolution_backward",)
"""Operators that call those libraries without saying so in their name."""
_TRIALS = 8
"""A call that launches more kernels than this tries algorithms out; a convolution takes up to five,
with conversions of the layout."""


@dataclass(frozen=True)
class Plans:
    """Slow first calls.

    Attributes:
        ops: rows of the operators.
        search: host time until the algorithm is known (a union, ns).
        trials: rows of calls that launch kernels to compare them.
        tried: do the calls compare algorithms by running them?
    """

    ops: IntArray
    search: Intervals
    trials: IntArray
    tried: bool


def new_plans(analysis: Analysis, least_ns: int) -> Plans | None:
    """Operators of those libraries that spend long on the host before their first launch.

    Args:
        analysis: of one rank.
        least_ns: least time of the operator itself, without what it calls and waits for. A plan
            that is known takes some 20 µs, a new one milliseconds.

    Returns:
        None without such calls, or where the same shapes are slow again and again: then something
        else is.
    """
    trace, tree = analysis.trace, analysis.trace.tree
    flag = trace.tree.named(_searches) & (tree.kind == Kind.CPU_OP)
    nodes = np.flatnonzero(flag)
    nodes = nodes[tree.self_ns[nodes] >= least_ns]
    rows = analysis.in_steps(tree.rows[nodes])
    if rows.size == 0 or not _all_new(trace, rows):
        return None
    ts = trace.column("ts_ns")
    end = ts[rows] + trace.column("dur_ns")[rows]
    known, trials, most = _known_at(analysis, rows)
    return Plans(rows, union(ts[rows], np.minimum(known, end)), trials, most > _TRIALS)


def _searches(name: str) -> bool:
    return name in _DIFFERENTIATED or (
        name.startswith("aten::") and any(library in name for library in _LIBRARIES)
    )


def _all_new(trace: Trace, rows: IntArray) -> bool:
    """Has each slow call other shapes than the others? True where none were recorded."""
    dims = trace.column("dims_id")[rows]
    if (dims < 0).any():
        return True
    calls = np.stack((trace.column("name_id")[rows], dims))
    return bool(np.unique(calls, axis=1).shape[1] > rows.size // 2)


def _known_at(analysis: Analysis, rows: IntArray) -> tuple[IntArray, IntArray, int]:
    """When each call's algorithm was known, the launches before, and the most launches of a call.

    Trials are timed by events that are waited for, and their memory is given back; what is
    launched after the last of these is the real work. Without trials the first launch is.
    """
    trace = analysis.trace
    ts, dur, thread = (trace.column(c) for c in ("ts_ns", "dur_ns", "thread"))
    launches = analysis.rows(Kind.LAUNCH, Kind.COPY_CALL)
    ends = analysis.rows(Kind.SYNC_CALL, Kind.FREE_CALL)
    known, trials, most = [], [launches[:0]], 0
    for row in rows:
        low, high = ts[row], ts[row] + dur[row]
        mine, waits = (
            part[np.searchsorted(ts[part], low) : np.searchsorted(ts[part], high)]
            for part in (launches, ends)
        )
        mine, waits = mine[thread[mine] == thread[row]], waits[thread[waits] == thread[row]]
        most = max(most, mine.size)
        if mine.size > _TRIALS and waits.size:
            at = int((ts[waits] + dur[waits]).max())
            trials.append(mine[ts[mine] < at])
        else:
            at = int(ts[mine[0]]) if mine.size else int(high)
        known.append(at)
    return np.array(known, dtype=np.int64), np.concatenate(trials), most
