"""What the launching threads spend their time on: launching, or something else for long.

Between two operators there is always a little Python; it belongs to launching. A stretch without
any operator or runtime call that lasts as long as several launches is work of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.activity import Activity, Cause
from kinetoscope.metrics.intervals import Intervals, clip, complement, merge, subtract, union
from kinetoscope.metrics.overhead import event_overhead_ns
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.trace import IntArray, Trace

LONG_NS = 100_000
"""Several times the Python between two operators: in eager models of all sizes its 95th
percentile lies below 60 µs, without profiling overhead."""

_LEAST_OVERHEAD = 0.55
"""The model of overhead was too high by this factor at worst, on recordings of an H200."""

_AT_WORK = (
    Cause.LOADER,
    Cause.COMPILE,
    Cause.CHECKPOINT,
    Cause.GC,
    Cause.COLLECTIVE,
    Cause.SYNC,
    Cause.ALLOC,
    Cause.COPY,
    Cause.LAUNCH,
    Cause.OP,
    Cause.AUTOGRAD,
)
"""What is neither Python nor unknown. The main thread inside `backward()` is in the engine."""
_NOT_LAUNCHING = (
    Cause.LOADER,
    Cause.COMPILE,
    Cause.CHECKPOINT,
    Cause.GC,
    Cause.COLLECTIVE,
    Cause.SYNC,
    Cause.ALLOC,
)
_MAY_BE_LAUNCHING = (Cause.OP, Cause.LAUNCH, Cause.COPY)


@dataclass(frozen=True)
class HostTime:
    """Host time of the steps; ns.

    Attributes:
        launching: operators, launches and the Python between them.
        long: stretches without an operator or a call that last `LONG_NS` even when recording
            them cost as little as the model of overhead may be wrong; waits of the main thread
            for the autograd engine left out.
        long_net: their lengths without the modelled overhead.
        long_most: the same, with as little overhead as it may have been.
    """

    launching: Intervals
    long: Intervals
    long_net: IntArray
    long_most: IntArray


def host_time(trace: Trace, activity: Activity) -> HostTime:
    """Split the host time between the first and the last step mark."""
    low, high = trace.steps.start, trace.steps.end
    threads = launching_threads(trace)
    mine = np.isin(activity.thread, threads)
    working = _spans(activity, mine & np.isin(activity.cause, _AT_WORK))
    quiet = complement(clip(working, low, high), low, high)
    length = quiet[1] - quiet[0]
    overhead = _overhead(trace, threads, quiet)
    most = np.maximum(length - _LEAST_OVERHEAD * overhead, 0).astype(np.int64)
    is_long = most >= LONG_NS
    net = np.maximum(length - overhead, 0.1 * length).astype(np.int64)
    long = quiet[0][is_long], quiet[1][is_long]
    heavy = np.isin(activity.cause, _MAY_BE_LAUNCHING) & (activity.end - activity.start >= LONG_NS)
    others = _spans(activity, mine & (np.isin(activity.cause, _NOT_LAUNCHING) | heavy))
    rest = subtract((np.array([low]), np.array([high])), merge(others, long))
    return HostTime(rest, long, net[is_long], most[is_long])


def launching_threads(trace: Trace) -> IntArray:
    """Threads that launch device work, and the one with the steps (or most operators)."""
    calls = rows_of(trace, Kind.LAUNCH, Kind.GRAPH_LAUNCH, Kind.COPY_CALL)
    threads = np.unique(trace.column("thread")[calls]).astype(np.int64)
    if trace.steps.thread >= 0:
        return np.union1d(threads, [trace.steps.thread])
    if threads.size == 0:
        ops = trace.column("thread")[rows_of(trace, Kind.CPU_OP, Kind.PYTHON)]
        return np.array([np.bincount(ops).argmax()] if ops.size else [], dtype=np.int64)
    return threads


def _spans(activity: Activity, which: npt.NDArray[np.bool_]) -> Intervals:
    return union(activity.start[which], activity.end[which])


def _overhead(trace: Trace, threads: IntArray, spans: Intervals) -> npt.NDArray[np.float64]:
    """What recording the events inside each stretch cost, ns."""
    cost = event_overhead_ns(trace)
    use = np.flatnonzero((cost > 0) & np.isin(trace.column("thread"), threads))
    ts = trace.column("ts_ns")[use]
    total = np.concatenate(([0.0], np.cumsum(cost[use])))
    inside = total[np.searchsorted(ts, spans[1])] - total[np.searchsorted(ts, spans[0])]
    return np.asarray(inside, dtype=np.float64)
