"""Why the device was idle: kinds of gaps, and what the launching thread did meanwhile (M-3).

A gap lies between two stretches of device work. When the event that ends it was launched after
the device had run dry, the host is to blame for the time from the start of the gap to the end of
the launching call (a call that blocks is the host's affair as well); the rest is launch latency.
When it was launched before, the device waited for something else: an event of another stream, a
copy engine, or nothing that was recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.activity import Activity, Cause
from kinetoscope.metrics.device import DeviceActivity
from kinetoscope.metrics.intervals import Intervals, complement, overlaps, subtract
from kinetoscope.metrics.step_time import StepTimes
from kinetoscope.trace.kinds import DEVICE_WORK
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.trace import IntArray, Trace

SHORT_GAP_NS = 30_000
"""Between kernels whose launches came in time, gaps below this are the device's own."""

LONGEST_LATENCY_NS = 200_000
"""Work that starts this long after its launch waited for something: not latency. Floors seen in
recordings lie between 6 and 25 us."""


@dataclass(frozen=True)
class Gaps:
    """Idle gaps of one device inside the step window; ns, one entry per gap.

    Attributes:
        start, end: the gap.
        event: row of the device event that ends it; -1 for the end of the window.
        launch: row of that event's launch; -1: not recorded.
        host_end: up to here the host was issuing the event; equal to `start` when it had been
            issued before the gap.
        thread: the launching thread; -1: unknown.
    """

    start: IntArray
    end: IntArray
    event: IntArray
    launch: IntArray
    host_end: IntArray
    thread: IntArray

    @property
    def total_ns(self) -> int:
        """Idle time in the window."""
        return int((self.end - self.start).sum())


@dataclass(frozen=True)
class IdlePieces:
    """The host-caused part of the gaps, cut by what the host was doing; ns.

    Attributes:
        gap: index into `Gaps`.
        start, end: the piece.
        row: innermost host event; -1 where none was recorded.
        cause: what it means.
    """

    gap: IntArray
    start: IntArray
    end: IntArray
    row: IntArray
    cause: npt.NDArray[np.int8]

    @property
    def ns(self) -> IntArray:
        """Length of each piece."""
        return self.end - self.start


def find_gaps(trace: Trace, device: DeviceActivity, times: StepTimes) -> Gaps:
    """All gaps of a device in the step window, with the launch that ended each."""
    low, high = times.window
    start, end = complement(device.busy, low, high)
    rows = rows_of(trace, *DEVICE_WORK)
    rows = rows[trace.column("device")[rows] == device.device]
    ts = trace.column("ts_ns")
    at = np.searchsorted(ts[rows], end, side="left")
    known = at < rows.size
    event = np.where(known, rows[np.minimum(at, rows.size - 1)], -1)
    event = np.where((event >= 0) & (ts[np.maximum(event, 0)] == end), event, -1)
    launch = np.where(event >= 0, trace.links.launch[np.maximum(event, 0)], -1)
    call = np.maximum(launch, 0)
    returned = ts[call] + trace.column("dur_ns")[call]
    issued = np.where((launch >= 0) & (returned > start), returned, start)
    # At the right end of the window nothing was launched any more: the host is late until the end.
    issued = np.where((event < 0) & (end == high), end, issued)
    thread = np.where(launch >= 0, trace.column("thread")[np.maximum(launch, 0)], -1)
    thread = np.where((event < 0) & (end == high), trace.steps.thread, thread)
    return Gaps(start, end, event, launch, np.clip(issued, start, end), thread.astype(np.int64))


def explain(trace: Trace, activity: Activity, gaps: Gaps) -> IdlePieces:
    """Cut the host-caused part of each gap by the activity of the thread that ended it.

    Where the launching thread was doing nothing, or only waiting for the autograd engine or for
    another thread, the thread that was at work explains the time: first the main thread, then
    the other launching threads.
    """
    left = np.flatnonzero(gaps.host_end > gaps.start)
    todo = _Todo(left, gaps.start[left], gaps.host_end[left])
    done: list[IdlePieces] = []
    waiting: list[IdlePieces] = []
    for thread in _search_order(trace, gaps):
        mine = np.arange(todo.gap.size)
        if thread.own:
            mine = mine[gaps.thread[todo.gap] == thread.index]
        pieces = _cut(activity, thread.index, todo.take(mine))
        final = ~np.isin(pieces.cause, (Cause.AUTOGRAD, Cause.WAIT, Cause.NOTHING))
        done.append(_select(pieces, final))
        waiting.append(_select(pieces, ~final))
        todo = todo.without(mine, _select(pieces, final))
    done.append(_leftover(todo, waiting))
    result = _concatenate(done)
    order = np.argsort(result.start, kind="stable")
    return _select(result, order)


def host_blocked(activity: Activity, gaps: Gaps) -> npt.NDArray[np.bool_]:
    """Gaps in which the thread that ended them was blocked in a call most of the time.

    Host and device then wait for the same thing, which the recording does not show: another
    stream's earlier work, a peer, the driver.
    """
    inside = np.zeros(gaps.start.size, dtype=np.int64)
    for thread in np.unique(gaps.thread[gaps.thread >= 0]):
        part = activity.of_thread(int(thread))
        waits = np.isin(activity.cause[part], (Cause.SYNC, Cause.COPY, Cause.COLLECTIVE))
        mine = np.flatnonzero(gaps.thread == thread)
        found = overlaps(
            (gaps.start[mine], gaps.end[mine]),
            (activity.start[part][waits], activity.end[part][waits]),
        )
        np.add.at(inside, mine[found.left], found.end - found.start)
    return inside > 0.5 * (gaps.end - gaps.start)


@dataclass(frozen=True)
class _Thread:
    index: int
    own: bool


def _search_order(trace: Trace, gaps: Gaps) -> list[_Thread]:
    counted = gaps.thread[gaps.thread >= 0]
    threads = [int(t) for t in np.unique(counted)]
    threads.sort(key=lambda t: -int((counted == t).sum()))
    order = [_Thread(t, own=True) for t in threads]
    main = trace.steps.thread
    others = ([main] if main >= 0 else []) + [t for t in threads if t != main]
    return order + [_Thread(t, own=False) for t in others]


@dataclass(frozen=True)
class _Todo:
    """Stretches (of gaps) that are not explained yet."""

    gap: IntArray
    start: IntArray
    end: IntArray

    def take(self, which: IntArray) -> _Todo:
        return _Todo(self.gap[which], self.start[which], self.end[which])

    def without(self, which: IntArray, pieces: IdlePieces) -> _Todo:
        """Everything but the explained pieces of the entries `which`."""
        untouched = np.ones(self.gap.size, dtype=bool)
        untouched[which] = False
        rest = np.flatnonzero(untouched)
        taken = self.take(which)
        order = np.argsort(taken.start, kind="stable")
        start, end = subtract(
            (taken.start[order], taken.end[order]), _sorted((pieces.start, pieces.end))
        )
        owner = np.searchsorted(taken.start[order], start, side="right") - 1
        return _Todo(
            np.concatenate((self.gap[rest], taken.gap[order][owner])),
            np.concatenate((self.start[rest], start)),
            np.concatenate((self.end[rest], end)),
        )


def _sorted(intervals: Intervals) -> Intervals:
    order = np.argsort(intervals[0], kind="stable")
    return intervals[0][order], intervals[1][order]


def _cut(activity: Activity, thread: int, todo: _Todo) -> IdlePieces:
    part = activity.of_thread(thread)
    found = overlaps((todo.start, todo.end), (activity.start[part], activity.end[part]))
    return IdlePieces(
        gap=todo.gap[found.left],
        start=found.start,
        end=found.end,
        row=activity.row[part][found.right],
        cause=activity.cause[part][found.right],
    )


def _leftover(todo: _Todo, waiting: list[IdlePieces]) -> IdlePieces:
    """What nobody explained: the wait itself where one was recorded, else nothing."""
    seen = _concatenate(waiting)
    order = np.argsort(seen.start, kind="stable")
    seen = _select(seen, order)
    first = _select(seen, _disjoint(seen.start, seen.end))
    found = overlaps((todo.start, todo.end), (first.start, first.end))
    named = IdlePieces(
        gap=todo.gap[found.left],
        start=found.start,
        end=found.end,
        row=first.row[found.right],
        cause=first.cause[found.right],
    )
    order = np.argsort(todo.start, kind="stable")
    start, end = subtract((todo.start[order], todo.end[order]), _sorted((named.start, named.end)))
    owner = np.searchsorted(todo.start[order], start, side="right") - 1
    blank = IdlePieces(
        gap=todo.gap[order][owner],
        start=start,
        end=end,
        row=np.full(start.size, -1, dtype=np.int64),
        cause=np.full(start.size, Cause.NOTHING, dtype=np.int8),
    )
    return _concatenate([named, blank])


def _disjoint(start: IntArray, end: IntArray) -> npt.NDArray[np.bool_]:
    """Of intervals sorted by start, those that begin after all earlier ones have ended."""
    if start.size == 0:
        return np.zeros(0, dtype=bool)
    reach = np.maximum.accumulate(end)
    return np.append(True, start[1:] >= reach[:-1])


def _select(pieces: IdlePieces, which: npt.NDArray[np.bool_] | IntArray) -> IdlePieces:
    return IdlePieces(
        pieces.gap[which],
        pieces.start[which],
        pieces.end[which],
        pieces.row[which],
        pieces.cause[which],
    )


def _concatenate(parts: list[IdlePieces]) -> IdlePieces:
    none = np.empty(0, dtype=np.int64)
    parts = parts or [IdlePieces(none, none, none, none, none.astype(np.int8))]
    return IdlePieces(
        np.concatenate([p.gap for p in parts]).astype(np.int64),
        np.concatenate([p.start for p in parts]).astype(np.int64),
        np.concatenate([p.end for p in parts]).astype(np.int64),
        np.concatenate([p.row for p in parts]).astype(np.int64),
        np.concatenate([p.cause for p in parts]).astype(np.int8),
    )
