"""The recording as a list of host calls and the device events they launch.

The host side is one sequence of runtime calls over all launching threads, in time order: threads
of one program hand over to each other (the main thread waits while the autograd thread works),
so the order of their calls is the order of their work. Between two calls lies a *segment* of
host work. A call may block until a device event ends. A device event starts when its stream is
free, its launch has arrived, and an event of another stream that it visibly waited for has ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.intervals import Intervals
from kinetoscope.metrics.overhead import event_overhead_ns, profiler_time
from kinetoscope.metrics.step_time import StepTimes
from kinetoscope.replay.waits import blocking, dependencies
from kinetoscope.trace.kinds import DEVICE_WORK, RUNTIME_KINDS, Kind
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.trace import IntArray, Trace

MAX_CALLS = 6_000
"""Longer windows are cut to as many whole steps as fit; the rest is alike."""

_QUEUE_FACTOR = 8
"""A launch this many times longer than the median waited for a place in the launch queue."""


@dataclass(frozen=True)
class Model:
    """Host calls (index k) and device events (index i) of whole steps; times in ns.

    Attributes:
        call_row: event-table row of each call; -1 for a step mark.
        call_start, call_end: recorded times.
        segment: host work before the call, ns.
        segment_overhead: modelled profiling overhead inside the segment and the call.
        call_cost: what the call costs the host when it does not wait.
        blocks_on: device event that the call waits for; -1: none.
        tail: time between the end of that event and the return of the call.
        event_row: event-table row of each device event, ordered by call, then by start.
        first_event: events of call k are first_event[k] : first_event[k + 1].
        stream: dense stream number of each event.
        duration: of each event.
        delay: from the start of the call to the earliest start of the event.
        depends_on, lag: event of another stream that must end first, and how much later this
            one starts; -1: none.
        step: step of each event.
        mark: call index of each step mark.
        initial_free: when each stream is through with what was launched before the window.
        host_threads: threads whose events count as host work.
        origin: start of the first replayed step.
        recorded_ns: step time as recorded.
        irregular: the mean of the steps is the pace, not the median.
        inflated: part of each event's duration that only profiling caused (waiting for a rank
            whose host was slowed down); None for none.
        waiting: part of each event's duration that is waiting for other ranks; None: not known.
        lead_ns: how long the device worked on what was launched before the recording, where the
            whole recording is one step: no part of the step.
    """

    call_row: IntArray
    call_start: IntArray
    call_end: IntArray
    segment: IntArray
    segment_overhead: IntArray
    call_cost: IntArray
    blocks_on: IntArray
    tail: IntArray
    event_row: IntArray
    first_event: IntArray
    stream: IntArray
    duration: IntArray
    delay: IntArray
    depends_on: IntArray
    lag: IntArray
    step: IntArray
    mark: IntArray
    initial_free: IntArray
    host_threads: IntArray
    profiler: Intervals
    origin: int
    recorded_ns: int
    irregular: bool = False
    inflated: IntArray | None = None
    waiting: IntArray | None = None
    lead_ns: int = 0

    @property
    def segments(self) -> Intervals:
        """Recorded extent of the segment before each call: [previous end, start)."""
        return self.call_start - self.segment, self.call_start


def build_model(trace: Trace, times: StepTimes) -> Model:
    """Take the steady steps of a recording apart."""
    first, last = _chosen_steps(trace, times)
    edges = trace.steps.edges[first : last + 2]
    calls, marks = _calls(trace, edges)
    ts, dur = trace.column("ts_ns"), trace.column("dur_ns")
    start = np.where(calls >= 0, ts[calls], 0)
    end = np.where(calls >= 0, ts[calls] + dur[calls], 0)
    start[marks], end[marks] = edges, edges
    events, first_event, owner = _events(trace, calls)
    segment = _segments(start, end)
    threads = _host_threads(trace, calls)
    overhead = _overhead(trace, threads, start, end, segment)
    stream = _dense_streams(trace, events)
    blocks_on, tail = blocking(trace, calls, start, end, events, owner)
    delay, depends, lag = dependencies(trace, events, owner, start, stream)
    return Model(
        call_row=calls,
        call_start=start,
        call_end=end,
        segment=segment,
        segment_overhead=overhead,
        call_cost=_call_cost(trace, calls, end - start),
        blocks_on=blocks_on,
        tail=tail,
        event_row=events,
        first_event=first_event,
        stream=stream,
        duration=dur[events],
        delay=delay,
        depends_on=depends,
        lag=lag,
        step=np.searchsorted(edges, start[owner], side="right") - 1
        if owner.size
        else np.empty(0, dtype=np.int64),
        mark=marks,
        initial_free=_initial_free(trace, times, events, stream, int(edges[0])),
        host_threads=threads,
        profiler=profiler_time(trace),
        origin=int(edges[0]),
        recorded_ns=times.recorded_ns,
        irregular=times.irregular,
        lead_ns=times.lead_ns,
    )


def _chosen_steps(trace: Trace, times: StepTimes) -> tuple[int, int]:
    """The steady steps, or as many of the last ones as fit the size limit (at least two)."""
    first, last = times.steady[0], times.steady[-1]
    rows = rows_of(trace, *RUNTIME_KINDS)
    per_step = rows.size / max(trace.steps.count, 1)
    most = max(int(MAX_CALLS / max(per_step, 1)), 2)
    return max(first, last - most + 1), last


def _calls(trace: Trace, edges: IntArray) -> tuple[IntArray, IntArray]:
    """Rows of the calls between the first and last edge with a -1 for each edge in between."""
    rows = rows_of(trace, *RUNTIME_KINDS)
    ts = trace.column("ts_ns")
    rows = rows[(ts[rows] >= edges[0]) & (ts[rows] < edges[-1])]
    rows = rows[_outermost(trace, rows)]
    at = np.searchsorted(ts[rows], edges, side="left")
    calls = np.insert(rows, at, -1)
    return calls, at + np.arange(edges.size)


def _outermost(trace: Trace, rows: IntArray) -> npt.NDArray[np.bool_]:
    """Driver calls inside runtime calls are part of them."""
    tree = trace.tree
    node = tree.node_of[rows]
    parent = np.where(node >= 0, tree.parent[node], -1)
    return ~((parent >= 0) & np.isin(tree.kind[np.maximum(parent, 0)], RUNTIME_KINDS))


def _segments(start: IntArray, end: IntArray) -> IntArray:
    """Host work before each call; 0 where calls of two threads overlap."""
    if start.size == 0:
        return start
    reach = np.maximum.accumulate(end)
    previous = np.concatenate((start[:1], reach[:-1]))
    return np.asarray(np.maximum(start - previous, 0), dtype=np.int64)


def _host_threads(trace: Trace, calls: IntArray) -> IntArray:
    threads = np.unique(trace.column("thread")[calls[calls >= 0]]).astype(np.int64)
    if trace.steps.thread >= 0:
        threads = np.union1d(threads, [trace.steps.thread])
    return threads


def _overhead(
    trace: Trace, threads: IntArray, start: IntArray, end: IntArray, segment: IntArray
) -> IntArray:
    """Modelled overhead between the end of the previous call and the end of this one."""
    cost = event_overhead_ns(trace)
    ts = trace.column("ts_ns")
    use = np.flatnonzero((cost > 0) & np.isin(trace.column("thread"), threads))
    total = np.concatenate(([0.0], np.cumsum(cost[use])))
    upto = total[np.searchsorted(ts[use], np.maximum(end, start + 1), side="left")]
    before = total[np.searchsorted(ts[use], start - segment, side="left")]
    return np.asarray(np.maximum(upto - before, 0), dtype=np.int64)


def _events(trace: Trace, calls: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Device events launched by these calls, ordered by call, then by start."""
    rows = rows_of(trace, *DEVICE_WORK)
    position = np.full(len(trace), -1, dtype=np.int64)
    real = np.flatnonzero(calls >= 0)
    position[calls[real]] = real
    launch = trace.links.launch[rows]
    outer = _outer_call(trace, launch)
    owner = np.where(outer >= 0, position[outer], -1)
    rows, owner = rows[owner >= 0], owner[owner >= 0]
    order = np.argsort(owner, kind="stable")
    rows, owner = rows[order], owner[order]
    first_event = np.searchsorted(owner, np.arange(calls.size + 1), side="left")
    return rows, first_event, owner


def _outer_call(trace: Trace, launch: IntArray) -> IntArray:
    """The runtime call around a driver call, as `_calls` keeps only the outer one."""
    tree = trace.tree
    if tree.rows.size == 0:
        return launch
    node = np.where(launch >= 0, tree.node_of[launch], -1)
    parent = np.where(node >= 0, tree.parent[node], -1)
    nested = (parent >= 0) & np.isin(tree.kind[np.maximum(parent, 0)], RUNTIME_KINDS)
    return np.where(nested, tree.rows[np.maximum(parent, 0)], launch)


def _dense_streams(trace: Trace, events: IntArray) -> IntArray:
    key = (
        trace.column("device")[events].astype(np.int64) * (1 << 32) + trace.column("stream")[events]
    )
    return np.unique(key, return_inverse=True)[1].astype(np.int64)


def _call_cost(trace: Trace, calls: IntArray, duration: IntArray) -> IntArray:
    """Cost of a call that does not wait: long launches waited for a place in the queue."""
    cost = duration.copy()
    kind = np.where(calls >= 0, trace.column("kind")[calls], 255)
    launches = (kind == Kind.LAUNCH) | (kind == Kind.COPY_CALL)
    if launches.any():
        usual = int(np.median(duration[launches]))
        cost[launches] = np.minimum(cost[launches], _QUEUE_FACTOR * max(usual, 1000))
    return np.asarray(cost, dtype=np.int64)


def _initial_free(
    trace: Trace, times: StepTimes, events: IntArray, stream: IntArray, origin: int
) -> IntArray:
    """End of the work launched before the window, for each stream of the model."""
    count = int(stream.max()) + 1 if stream.size else 0
    free = np.full(count, origin, dtype=np.int64)
    if not count:
        return free
    ts, dur = trace.column("ts_ns"), trace.column("dur_ns")
    lane_of = trace.column("thread").astype(np.int64)
    first = np.full(count, np.iinfo(np.int64).max, dtype=np.int64)
    np.minimum.at(first, stream, ts[events])
    number = np.full(len(trace.threads), -1, dtype=np.int64)
    number[lane_of[events]] = stream
    rows = times.device_rows
    lane = number[lane_of[rows]]
    before = (lane >= 0) & (ts[rows] < first[np.maximum(lane, 0)])
    np.maximum.at(free, lane[before], (ts + dur)[rows[before]])
    return free
