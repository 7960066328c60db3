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
from kinetoscope.trace.kinds import DEVICE_WORK, RUNTIME_KINDS, CopyKind, Kind
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.trace import IntArray, Trace

MAX_CALLS = 6_000
"""Longer windows are cut to as many whole steps as fit; the rest is alike."""

_BLOCK_TAIL_NS = 60_000
"""A call that returns this soon after a device event's end has waited for it."""
_DEPENDENCY_NS = 12_000
"""An event that starts this soon after the end of another stream's event waited for it."""
_VISIBLE_WAIT_NS = 1_500
"""An event later than this after its stream was free and its launch had arrived has waited."""
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
    blocks_on, tail = _blocking(trace, calls, start, end, events, owner)
    delay, depends, lag = _dependencies(trace, events, owner, start, stream)
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


def _blocking(
    trace: Trace,
    calls: IntArray,
    start: IntArray,
    end: IntArray,
    events: IntArray,
    owner: IntArray,
) -> tuple[IntArray, IntArray]:
    """Which device event each synchronising call waited for."""
    blocks_on = np.full(calls.size, -1, dtype=np.int64)
    tail = np.zeros(calls.size, dtype=np.int64)
    if not events.size:
        return blocks_on, tail
    kind = np.where(calls >= 0, trace.column("kind")[calls], 255)
    waiting = np.isin(kind, (Kind.SYNC_CALL, Kind.COPY_CALL, Kind.FREE_CALL, Kind.ALLOC_CALL))
    waiting[owner[_on_device_only(trace, events)]] = False
    ts, dur = trace.column("ts_ns")[events], trace.column("dur_ns")[events]
    event_end = ts + dur
    by_end = np.argsort(event_end, kind="stable")
    ends = event_end[by_end]
    candidates = np.flatnonzero(waiting & (end - start > 0))
    latest = np.searchsorted(ends, end[candidates], side="right") - 1
    for k, last in zip(candidates.tolist(), latest.tolist(), strict=True):
        at = last
        # Step back over events that were launched later than this call.
        while at >= 0 and ends[at] > start[k] and owner[by_end[at]] > k:
            at -= 1
        if at < 0 or ends[at] <= start[k]:
            continue
        late = int(end[k] - ends[at])
        if late <= max(_BLOCK_TAIL_NS, 0.3 * (end[k] - start[k])):
            blocks_on[k], tail[k] = by_end[at], late
    return blocks_on, tail


def _on_device_only(trace: Trace, events: IntArray) -> npt.NDArray[np.bool_]:
    """Memsets and copies within or between devices: the host never waits for those."""
    within = np.isin(trace.column("copy_kind")[events], (CopyKind.D2D, CopyKind.P2P))
    return np.asarray(within | (trace.column("kind")[events] == Kind.MEMSET))


def _dependencies(
    trace: Trace, events: IntArray, owner: IntArray, call_start: IntArray, stream: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Launch delay of each event and the event of another stream it visibly waited for."""
    size = events.size
    none = np.full(size, -1, dtype=np.int64)
    if size == 0:
        return none, none, none
    ts, dur = trace.column("ts_ns")[events], trace.column("dur_ns")[events]
    end = ts + dur
    previous_end = _previous_on_stream(stream, end)
    issued = ts - call_start[owner]
    free = previous_end <= call_start[owner]
    floor = int(np.percentile(issued[free & (issued > 0)], 5)) if (free & (issued > 0)).any() else 0
    delay = np.minimum(np.maximum(issued, 0), np.maximum(floor, 1))
    ready = np.maximum(previous_end, call_start[owner] + delay)
    slack = ts - ready
    depends, lag = none.copy(), np.zeros(size, dtype=np.int64)
    by_end = np.argsort(end, kind="stable")
    ends = end[by_end]
    waited = np.flatnonzero(slack > _VISIBLE_WAIT_NS)
    latest = np.searchsorted(ends, ts[waited], side="right") - 1
    for i, j in zip(waited.tolist(), latest.tolist(), strict=True):
        at = j
        while at >= 0 and ts[i] - ends[at] <= _DEPENDENCY_NS:
            other = int(by_end[at])
            if stream[other] != stream[i] and owner[other] <= owner[i] and other != i:
                depends[i], lag[i] = other, ts[i] - ends[at]
                break
            at -= 1
    # Waiting that nothing explains stays: it is launch latency when the stream was free.
    alone = depends < 0
    extra = np.where(alone & (slack > 0), slack, 0)
    late_launch = alone & (previous_end <= call_start[owner] + delay)
    delay = np.where(late_launch, delay + extra, delay)
    lag = np.where(alone & ~late_launch, extra, lag)
    return delay, depends, lag


def _previous_on_stream(stream: IntArray, end: IntArray) -> IntArray:
    """End of the event before each one on its stream, in launch order; far past for the first."""
    order = np.argsort(stream, kind="stable")
    previous = np.full(stream.size, np.iinfo(np.int64).min // 4, dtype=np.int64)
    same = np.append(False, stream[order][1:] == stream[order][:-1])
    shifted = np.concatenate((end[order][:1], end[order][:-1]))
    previous[order[same]] = shifted[same]
    return previous


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
