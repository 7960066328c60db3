"""What waited for what, as far as a recording shows it.

A recording names no reasons for waiting. A call that returns right after a device event has
ended, and an event that starts right after one of another stream has ended, have waited for it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kinetoscope.trace.kinds import CopyKind, Kind
from kinetoscope.trace.trace import IntArray, Trace

_BLOCK_TAIL_NS = 60_000
"""A call that returns this soon after a device event's end has waited for it."""
_QUICK_COPY_NS = 100_000
"""A call that issues a pinned copy does not wait; where it took longer, it seems to have waited."""
_CLOCKS_NS = 15_000
"""Time stamps of host and device differ by less than this."""
_DEPENDENCY_NS = 12_000
"""An event that starts this soon after the end of another stream's event waited for it."""
_DEPENDENCY_PART, _LONGEST_DEPENDENCY_NS = 0.1, 100_000
"""After a long wait also one that starts this part of it later: the first collective of a step
takes 20 to 40 us to get going."""
_LONGEST_FLOOR_NS = 60_000
"""Launches take 6 to 25 us in recordings; where none is that quick, all of them waited for
something, as on the communication stream of a rank that is ahead of the others."""
_VISIBLE_WAIT_NS = 1_500
"""An event later than this after its stream was free and its launch had arrived has waited."""


def blocking(
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
    quick = end - start < _QUICK_COPY_NS
    waiting[owner[_pinned(trace, events)]] &= ~quick[owner[_pinned(trace, events)]]
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
        at = max(at, _own_event(by_end, ends, owner, k, int(end[k])))
        if at < 0 or ends[at] <= start[k]:
            continue
        late = int(end[k] - ends[at])
        if late <= max(_BLOCK_TAIL_NS, 0.3 * (end[k] - start[k])):
            blocks_on[k], tail[k] = by_end[at], late
    return blocks_on, tail


def _own_event(by_end: IntArray, ends: IntArray, owner: IntArray, call: int, end: int) -> int:
    """Position of the call's own event when it ends with the call, give or take the clocks.

    A copy from pageable memory is over when its call returns; host and device time stamps differ
    by some microseconds, so the event may seem to end after it.
    """
    at = int(np.searchsorted(ends, end, side="right"))
    while at < ends.size and ends[at] <= end + _CLOCKS_NS:
        if owner[by_end[at]] == call:
            return at
        at += 1
    return -1


def _pinned(trace: Trace, events: IntArray) -> npt.NDArray[np.bool_]:
    """Copies that the device makes by itself from or to the host's memory."""
    return np.isin(trace.column("copy_kind")[events], (CopyKind.H2D_PINNED, CopyKind.D2H_PINNED))


def _on_device_only(trace: Trace, events: IntArray) -> npt.NDArray[np.bool_]:
    """Memsets and copies within or between devices: the host never waits for those."""
    within = np.isin(trace.column("copy_kind")[events], (CopyKind.D2D, CopyKind.P2P))
    return np.asarray(within | (trace.column("kind")[events] == Kind.MEMSET))


def dependencies(
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
    usable = issued[free & (issued > 0)]
    floor = int(np.percentile(usable, 5)) if usable.size else 0
    delay = np.minimum(np.maximum(issued, 0), min(max(floor, 1), _LONGEST_FLOOR_NS))
    ready = np.maximum(previous_end, call_start[owner] + delay)
    slack = ts - ready
    depends, lag = none.copy(), np.zeros(size, dtype=np.int64)
    by_end = np.argsort(end, kind="stable")
    ends = end[by_end]
    waited = np.flatnonzero(slack > _VISIBLE_WAIT_NS)
    latest = np.searchsorted(ends, ts[waited], side="right") - 1
    within = np.clip(_DEPENDENCY_PART * slack[waited], _DEPENDENCY_NS, _LONGEST_DEPENDENCY_NS)
    for i, j, most in zip(waited.tolist(), latest.tolist(), within.tolist(), strict=True):
        at = j
        while at >= 0 and ts[i] - ends[at] <= most:
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
