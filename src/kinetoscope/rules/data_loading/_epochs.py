"""Where epochs begin in a recording, and what their beginning costs the main process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Coverage, Intervals, empty, merge, union
from kinetoscope.rules.data_loading._input import loader_rows
from kinetoscope.trace.frames import (
    begins_loader_epoch,
    drops_loader_epoch,
    is_loader_epoch_frame,
    is_loader_of_processes,
    is_loader_request,
    is_process_start,
    is_queue_put,
)
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.trace import IntArray, Trace

_STARTS_WORK = (Kind.LAUNCH, Kind.GRAPH_LAUNCH, Kind.COPY_CALL)
_FORK_NS = 5_000_000
"""Ending and starting worker processes takes longer than this: one fork of a process that has
initialised a device was measured at 20 ms. Shorter pauses between epochs are something else."""


@dataclass(frozen=True)
class Epochs:
    """Beginnings of epochs with worker processes.

    Attributes:
        count: how many the steady steps hold.
        restart: host time for ending the old workers and starting new ones.
        first_wait: host time in which the main process waits for a new epoch's first batch,
            beyond the usual wait.
        first: the loader ranges that fetch a new epoch's first batch; more than `count`, as
            epochs that keep their workers begin as well.
        rows: host events to name the place by.
        seen: True when Python frames show the restart, False when it was inferred.
        batches: of an epoch, where the recording shows that all of them were asked for at once or
            soon after its beginning; None where it does not.
        dropped: most of the iterators are thrown away before the end of their epoch.
    """

    count: int
    restart: Intervals
    first_wait: Intervals
    first: IntArray
    rows: IntArray
    seen: bool
    batches: int | None = None
    dropped: bool = False


def epochs(analysis: Analysis) -> Epochs:
    """Find the beginnings of epochs in the steady steps."""
    waits = loader_rows(analysis, is_loader_of_processes)
    none = np.empty(0, dtype=np.int64)
    if waits.size < 2:
        return Epochs(0, empty(), empty(), none, none, seen=False)
    frames = analysis.in_steps(analysis.matching(is_loader_epoch_frame))
    frames = frames[analysis.trace.column("kind")[frames] == Kind.PYTHON]
    if frames.size:
        return _from_frames(analysis, frames, waits)
    return _from_ranges(analysis, waits)


def _from_frames(analysis: Analysis, frames: IntArray, waits: IntArray) -> Epochs:
    trace = analysis.trace
    names = trace.names
    ids = trace.column("name_id")[frames]
    starting = np.array([begins_loader_epoch(names[i]) for i in ids], bool)
    starts = analysis.extent(frames[starting])
    new = _first_waits(trace, waits, starts[1], _workers(analysis, starts))
    first = _first_waits(trace, waits, starts[1], 1)
    return Epochs(
        count=int(starts[0].size),
        restart=analysis.extent(frames),
        first_wait=_excess(trace, _fetching(analysis, waits, frames), new),
        first=first,
        rows=frames[starting],
        seen=True,
        batches=_batches(analysis, starts) if _one_ended(analysis, frames, starts) else None,
        dropped=2 * _dropped(analysis, frames) >= starts[0].size > 0,
    )


def _dropped(analysis: Analysis, frames: IntArray) -> int:
    """How many iterators still had workers to stop when they were thrown away.

    One that has come to its end stopped them itself.
    """
    names = analysis.trace.column("name_id")[frames]
    drops = np.array([drops_loader_epoch(analysis.trace.names[i]) for i in names], dtype=bool)
    return int((analysis.trace.column("dur_ns")[frames[drops]] > _FORK_NS).sum())


def _one_ended(analysis: Analysis, frames: IntArray, starts: Intervals) -> bool:
    """Was an epoch over before the last one began? Else another loader began beside it.

    A validation within a long epoch is short and tells nothing about the epoch.
    """
    trace = analysis.trace
    names, ts = trace.column("name_id")[frames], trace.column("ts_ns")[frames]
    ends = np.array([not begins_loader_epoch(trace.names[i]) for i in names], dtype=bool)
    return bool(starts[0].size and (ts[ends] < starts[0][-1]).any())


def _batches(analysis: Analysis, starts: Intervals) -> int | None:
    """Batches of the last of the epochs that began, told by the first request that found none left.

    The loader asks for a few batches ahead for each worker, and for one more with each batch that
    it hands out; a request that puts nothing into a worker's queue found the epoch exhausted.
    """
    ts, dur = analysis.trace.column("ts_ns"), analysis.trace.column("dur_ns")
    asked = analysis.matching(is_loader_request)
    asked = asked[ts[asked] >= starts[0][-1]]
    asked = asked[np.argsort(ts[asked])]
    # The profiler ends a frame that is open when it stops: what it had not done yet is unknown.
    asked = asked[ts[asked] + dur[asked] < ts.max()]
    put = np.sort(ts[analysis.matching(is_queue_put)])
    served = np.searchsorted(put, ts[asked] + dur[asked]) > np.searchsorted(put, ts[asked])
    none_left = np.flatnonzero(~served)
    return int(none_left[0]) if none_left.size and none_left[0] > 0 else None


def _from_ranges(analysis: Analysis, waits: IntArray) -> Epochs:
    """Two loader ranges in a row without device work between them, and a long wait after.

    The first one found the data exhausted and shut the workers down; what lies between the two
    started the new ones.
    """
    trace = analysis.trace
    ts, dur = trace.column("ts_ns"), trace.column("dur_ns")
    work = ts[rows_of(trace, *_STARTS_WORK)]
    if work.size == 0:
        work = ts[rows_of(trace, Kind.CPU_OP)]
    end = ts[waits] + dur[waits]
    between = np.searchsorted(work, ts[waits][1:]) - np.searchsorted(work, end[:-1])
    restart_ns = ts[waits][1:] - ts[waits][:-1]
    begins = np.flatnonzero(between == 0) + 1
    second = begins[restart_ns[begins - 1] > _FORK_NS]
    first = waits[second]
    return Epochs(
        count=int(second.size),
        restart=union(ts[waits[second - 1]], ts[first]),
        first_wait=_excess(trace, waits, first),
        first=waits[begins],
        rows=first,
        seen=False,
    )


def _workers(analysis: Analysis, starts: Intervals) -> int:
    """How many processes each epoch starts; 1 when that cannot be seen."""
    rows = analysis.in_steps(analysis.matching(is_process_start))
    at = analysis.trace.column("ts_ns")[rows]
    inside = int((Coverage(starts).between(at, at + 1) > 0).sum())
    return max(inside // max(starts[0].size, 1), 1)


def _fetching(analysis: Analysis, waits: IntArray, frames: IntArray) -> IntArray:
    """Loader ranges that fetch a batch: without those that find the end and stop the workers."""
    ts = analysis.trace.column("ts_ns")
    end = ts[waits] + analysis.trace.column("dur_ns")[waits]
    at = np.sort(ts[frames])
    return np.asarray(waits[np.searchsorted(at, end) == np.searchsorted(at, ts[waits])])


def _first_waits(trace: Trace, waits: IntArray, after: IntArray, number: int) -> IntArray:
    """The first loader ranges that begin after each of these moments.

    The first batch of each new worker is late, since batches are handed out in turn.
    """
    at = np.searchsorted(trace.column("ts_ns")[waits], after)
    last = np.append(at, waits.size)[1:]
    some = (np.arange(low, min(low + number, high)) for low, high in zip(at, last, strict=True))
    return np.asarray(waits[np.unique(np.concatenate([*some, np.empty(0, dtype=np.int64)]))])


def _excess(trace: Trace, waits: IntArray, first: IntArray) -> Intervals:
    """The first waits without the length of a usual one, from their start."""
    ts, dur = trace.column("ts_ns"), trace.column("dur_ns")
    others = np.setdiff1d(waits, first)
    usual = int(np.median(dur[others])) if others.size else 0
    return union(ts[first], np.maximum(ts[first] + dur[first] - usual, ts[first]))


def cost(found: Epochs) -> Intervals:
    """All host time that the beginnings of epochs take."""
    return merge(found.restart, found.first_wait)
