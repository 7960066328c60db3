"""Host work between the loader and the copy of the batch: who did it, and while the device idled.

DL104 (training) and IN612 (serving) share it: the cause is the same, the words are not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.activity import Cause
from kinetoscope.metrics.intervals import Intervals, empty, intersect, measure, union
from kinetoscope.metrics.ownership import LARGE_COPY_BYTES, roundtrip_rows
from kinetoscope.metrics.transfers import Purpose, transfers
from kinetoscope.replay import Change, combined
from kinetoscope.result import Gain, Location
from kinetoscope.rules.cold import COLD_NS, with_cold_start
from kinetoscope.rules.data_loading._copies import from_pageable
from kinetoscope.rules.data_loading._input import idle, in_window, pinned_speed
from kinetoscope.rules.spread import spread
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.frames import is_framework_frame, is_profiler_frame, pins_batches
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray

_OTHERS = (Cause.LOADER, Cause.COMPILE, Cause.CHECKPOINT, Cause.GC, Cause.COLLECTIVE)
_LAUNCH_NS = 5_000
_CAUTIOUS = 0.95
"""Part of the work that goes away at least: some calls remain to issue what replaces it."""


@dataclass(frozen=True)
class Preparation:
    """Host work that makes the input; ns, in the steady steps.

    Attributes:
        work: the stretches in which it happens.
        exposed: the part of them in which the device is idle.
        rows, weights: innermost host events in it with the time that they took.
        copies: how many copies it ends in.
        bytes: what those copies carry.
        slow: rows of those copies that came from pageable memory, and how long each takes from
            pinned memory, ns.
        waits: calls in which the host waits for them.
    """

    work: Intervals
    exposed: Intervals
    rows: IntArray
    weights: IntArray
    copies: int
    bytes: int
    slow: tuple[IntArray, IntArray]
    waits: IntArray


_NONE = np.empty(0, dtype=np.int64)
_NOTHING = Preparation(empty(), empty(), _NONE, _NONE, 0, 0, (_NONE, _NONE), _NONE)


def preparation(analysis: Analysis) -> Preparation:
    """Find the work on the thread before each sizeable copy of data to the device."""
    moved = analysis.get(transfers)
    mine = in_window(analysis, moved) & (moved.of(Purpose.DATA) | moved.made)
    mine &= moved.work_end > moved.work_start
    if not mine.any():
        return _NOTHING
    thread = _threads(analysis, moved.call[mine])
    start, end = moved.work_start[mine], moved.work_end[mine]
    issued = analysis.trace.column("ts_ns")[moved.call[mine]]
    end = np.where(issued - end > _CONVERTS_NS, issued, end)
    found = _gathered(analysis, thread, (start, end), int(moved.bytes[mine].sum()))
    speed, _ = pinned_speed(analysis, moved)
    mine &= from_pageable(moved, speed)
    pinned = np.minimum(moved.ns, (moved.bytes / speed * 1e9).astype(np.int64))[mine]
    return replace(found, slow=(moved.row[mine], pinned), waits=moved.calls(mine))


_CONVERTS_NS = 200_000
"""From an operator that copies to its copy call the host needs some 20 us. Where it takes longer,
`to(device, dtype)` converts the tensor on the host first, which is preparation as well."""


def aftermath(analysis: Analysis) -> tuple[Preparation, IntArray]:
    """The work after each sizeable copy to the host, and the rows of those copies.

    It lasts until its thread starts device work again, or until the step ends.
    """
    trace, moved = analysis.trace, analysis.get(transfers)
    ts, dur = trace.column("ts_ns"), trace.column("dur_ns")
    mine = moved.of(Purpose.TO_HOST) & (moved.call >= 0)
    mine &= np.isin(moved.call, analysis.in_steps(moved.call))
    mine &= (moved.bytes >= LARGE_COPY_BYTES) & ~np.isin(moved.row, roundtrip_rows(trace))
    last = np.maximum(moved.sync, moved.call)[mine]
    low = ts[last] + dur[last]
    thread = _threads(analysis, last)
    starts = analysis.rows(Kind.LAUNCH, Kind.GRAPH_LAUNCH, Kind.COPY_CALL)
    high = np.empty_like(low)
    for index in np.unique(thread):
        at = np.append(ts[starts[trace.column("thread")[starts] == index]], trace.steps.end)
        here = thread == index
        high[here] = at[np.minimum(np.searchsorted(at, low[here], side="left"), at.size - 1)]
    edges = trace.steps.edges
    over = edges[np.minimum(np.searchsorted(edges, low, side="right"), edges.size - 1)]
    high = np.maximum(np.minimum(high, over), low)
    found = _gathered(analysis, thread, (low, high), int(moved.bytes[mine].sum()))
    return replace(found, waits=moved.calls(mine)), moved.row[mine]


def _threads(analysis: Analysis, rows: IntArray) -> IntArray:
    """Thread of each row."""
    return np.asarray(analysis.trace.column("thread")[rows].astype(np.int64))


def _gathered(analysis: Analysis, thread: IntArray, stretch: Intervals, nbytes: int) -> Preparation:
    """The work in stretches of a thread, one for each copy."""
    if thread.size == 0:
        return _NOTHING
    rows, start, end = _pieces(analysis, thread, stretch)
    work = union(start, end)
    return Preparation(
        work=work,
        exposed=intersect(work, idle(analysis)),
        rows=rows[rows >= 0],
        weights=(end - start)[rows >= 0],
        copies=thread.size,
        bytes=nbytes,
        slow=_NOTHING.slow,
        waits=_NOTHING.waits,
    )


def _pieces(
    analysis: Analysis, thread: IntArray, stretch: Intervals
) -> tuple[IntArray, IntArray, IntArray]:
    """Stretches of work on the data: row (-1: nothing was recorded), start, end."""
    trace, activity = analysis.trace, analysis.activity
    not_data = _not_data(analysis)
    parts: list[tuple[IntArray, IntArray, IntArray]] = []
    for index in np.unique(thread):
        low, high = (bound[thread == index] for bound in stretch)
        part = activity.of_thread(int(index))
        rows, cause = activity.row[part], activity.cause[part]
        start, end = activity.start[part], activity.end[part]
        other = np.isin(cause, _OTHERS) | not_data[trace.tree.node_of[rows]]
        first = np.searchsorted(end, low, side="right")
        last = np.searchsorted(start, high, side="left")
        for i in range(low.size):
            inside = np.arange(first[i], last[i])
            inside = inside[~other[inside]]
            parts.append(
                (
                    rows[inside],
                    np.maximum(start[inside], low[i]),
                    np.minimum(end[inside], high[i]),
                )
            )
            blank = _uncovered(start, end, first[i], last[i], int(low[i]), int(high[i]))
            parts.append((np.full(blank[0].size, -1, dtype=np.int64), *blank))
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))  # type: ignore[return-value]


def _uncovered(
    start: IntArray, end: IntArray, first: int, last: int, low: int, high: int
) -> Intervals:
    """Moments of [low, high) that no event covers: Python that was not recorded."""
    begin = np.concatenate(([low], np.minimum(end[first:last], high)))
    stop = np.concatenate((np.maximum(start[first:last], low), [high]))
    keep = stop > begin
    return begin[keep].astype(np.int64), stop[keep].astype(np.int64)


def _not_data(analysis: Analysis) -> npt.NDArray[np.bool_]:
    """Nodes inside torch's own training loop (optimizer, modules, profiler): no work on data."""
    trace, tree = analysis.trace, analysis.trace.tree
    names = trace.name_flags(lambda n: is_framework_frame(n) or is_profiler_frame(n))
    if not names.size:
        return np.zeros(tree.rows.size, dtype=bool)
    flag = names[trace.column("name_id")[tree.rows]] | (tree.kind == Kind.MODULE)
    return nearest(flag, tree.parent) >= 0


def preparation_gain(analysis: Analysis, found: Preparation) -> Gain:
    """What it gains to do the work elsewhere.

    Cautious: a part of it stays; likely: all of it goes, some kernels replace it, and what
    follows runs with warmer caches. Results of host work lie in pageable memory. Where the loader
    pins its batches, they come to the copy like that once nothing is made of them on the way.
    """
    pins = analysis.matching(pins_batches).size > 0
    copies = (Change(durations=found.slow, unblock=found.waits),) if pins else ()
    kernels = _LAUNCH_NS * max(found.copies // analysis.steps_on_host, 1)
    likely, best = (with_cold_start(found.work, cold) for cold in COLD_NS)
    return spread(
        analysis.gain(
            Change(host_cut=found.work, host_cut_factor=_CAUTIOUS, extra_host_ns=kernels),
            combined((Change(host_cut=likely, extra_host_ns=kernels), *copies)),
            combined((Change(host_cut=best), *copies)),
        )
    )


_LEFT = (1.0, 0.1, 0.0)
"""Part of the copies to the host that remains when the device does the work: all of it where the
program needs the data itself, one value in ten or more where it picks or counts."""


def aftermath_gain(analysis: Analysis, found: Preparation, copies: IntArray) -> Gain:
    """What it gains to do the work on results on the device, and to copy what it yields.

    At best that stays on the device as well, and the host waits for nothing.
    """
    kernels = _LAUNCH_NS * max(found.copies // analysis.steps_on_host, 1)
    ns = analysis.trace.column("dur_ns")[copies]
    likely, best = (with_cold_start(found.work, cold) for cold in COLD_NS)
    low, mid, high = ((copies, (ns * left).astype(np.int64)) for left in _LEFT)
    return spread(
        analysis.gain(
            Change(
                host_cut=found.work,
                host_cut_factor=_CAUTIOUS,
                extra_host_ns=kernels,
                durations=low,
            ),
            Change(host_cut=likely, extra_host_ns=kernels, durations=mid),
            Change(host_cut=best, durations=high, unblock=found.waits),
        )
    )


def preparation_places(analysis: Analysis, found: Preparation) -> tuple[Location, ...]:
    """The functions that the time went into."""
    return analysis.locations(found.rows, found.weights)


def share_of_step(analysis: Analysis, stretch: Intervals) -> float:
    """Length of a stretch of the device's timeline as a share of the window."""
    return measure(stretch) / max(analysis.step_ns * analysis.steps, 1)
