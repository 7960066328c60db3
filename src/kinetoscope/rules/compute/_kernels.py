"""What the compute rules share: kernels of the window, peaks of the device, and dropping work."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import DeviceOps, device_ops
from kinetoscope.metrics.hardware import Peaks
from kinetoscope.metrics.intervals import Intervals, union
from kinetoscope.result import Location
from kinetoscope.trace.kernel_names import is_persistent_kernel
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray

KERNEL_FLOOR_NS = 2_500
"""About the length of a kernel that does nothing; no fix makes one shorter."""


def peaks(analysis: Analysis) -> Peaks | None:
    """Peaks of the busiest device; None when the header does not say what it is."""
    return analysis.peaks


def busy_share(analysis: Analysis, rows: IntArray) -> float:
    """Time of these device events as a share of the device's busy time, both in the window."""
    inside = analysis.in_window(rows)
    total = int(analysis.trace.column("dur_ns")[inside].sum())
    return total / max(analysis.busy_per_step_ns * analysis.steps, 1)


def per_step_ns(analysis: Analysis, rows: IntArray) -> int:
    """Time of these device events in one step, ns."""
    inside = analysis.in_window(rows)
    return int(analysis.trace.column("dur_ns")[inside].sum()) // analysis.steps


def extent_of(analysis: Analysis, rows: IntArray) -> Intervals:
    """Device time of these events inside the window: what a finding about kernels claims."""
    return analysis.extent(analysis.in_window(rows))


def shrunk(ns: IntArray, new: npt.NDArray[np.float64], floor: int = KERNEL_FLOOR_NS) -> IntArray:
    """New durations: never longer than before, never shorter than an empty kernel."""
    least = np.minimum(ns, floor)
    return np.asarray(np.clip(new, least, ns), dtype=np.int64)


def host_of(analysis: Analysis, work: DeviceOps, which: IntArray) -> Intervals:
    """Host time of the operators that launched these events."""
    rows = np.unique(work.op[which])
    rows = rows[rows >= 0]
    ts, dur = analysis.trace.column("ts_ns"), analysis.trace.column("dur_ns")
    return union(ts[rows], ts[rows] + dur[rows])


def device_work(analysis: Analysis) -> DeviceOps:
    """The device events of the trace with their operators."""
    return analysis.get(device_ops)


def places(
    analysis: Analysis, rows: IntArray, *, calls: tuple[str, ...] = (), whole_step: bool = False
) -> tuple[Location, ...]:
    """Where these device events come from, and with `whole_step` who calls all of that.

    A fix that is a switch of the program (precision, compilation) belongs to the function that
    runs a step, not to the layer in which the time is spent.
    """
    rows = analysis.in_window(rows)
    inner = analysis.locations(rows, calls=calls, top=2 if whole_step else 3)
    return with_step(analysis, inner, rows) if whole_step else inner


def with_step(
    analysis: Analysis, inner: tuple[Location, ...], rows: IntArray
) -> tuple[Location, ...]:
    """Places of events, and the call in the function that runs a step which leads to them."""
    frames = _step_frames(analysis, rows)
    known = frames >= 0
    outer = analysis.locations(rows[known], inside=frames[known], top=1)
    seen = {(place.file, place.function) for place in inner}
    return inner + tuple(p for p in outer if (p.file, p.function) not in seen)


def apart(
    analysis: Analysis, rows: IntArray, others: IntArray, *, mixed: float = 0.0
) -> tuple[Location, ...]:
    """The outermost function around these device events that is around none of the others.

    Two models may run the same code, of which one is treated in another way by who calls it.

    Args:
        analysis: the recording.
        rows: the device events.
        others: the other ones.
        mixed: share of the function's time that may be others', and of theirs that may be in it.
    """
    tree = analysis.trace.tree
    name = analysis.trace.column("name_id")[tree.rows] if tree.rows.size else tree.rows
    theirs, mine = _time_by_name(analysis, others), _time_by_name(analysis, rows)
    all_theirs = int(analysis.trace.column("dur_ns")[others].sum())
    shared = [n for n, ns in theirs.items() if ns > mixed * min(ns + mine.get(n, 0), all_theirs)]
    found = np.full(rows.size, -1, dtype=np.int64)
    for frames in _outwards(analysis, rows):
        own = (frames >= 0) & ~np.isin(name[np.maximum(frames, 0)], shared)
        found = np.where(own, frames, found)
    known = found >= 0
    return analysis.locations(rows[known], inside=found[known], top=1)


def _time_by_name(analysis: Analysis, rows: IntArray) -> dict[int, int]:
    """Time of these device events inside of each user function, by the id of its name, ns."""
    tree, dur = analysis.trace.tree, analysis.trace.column("dur_ns")[rows]
    name = analysis.trace.column("name_id")[tree.rows] if tree.rows.size else tree.rows
    total: dict[int, int] = {}
    for frames in _outwards(analysis, rows):
        known = frames >= 0
        ids, at = np.unique(name[frames[known]], return_inverse=True)
        for one, ns in zip(ids.tolist(), np.bincount(at, dur[known]).tolist(), strict=True):
            total[one] = total.get(one, 0) + int(ns)
    return total


def _outwards(analysis: Analysis, rows: IntArray) -> Iterator[IntArray]:
    """User frames around each event, innermost first; -1 where there is none left."""
    tree = analysis.trace.tree
    frames = analysis.locator.frames(rows)
    while (frames >= 0).any():
        yield frames
        parent = np.where(frames >= 0, tree.parent[np.maximum(frames, 0)], -1)
        frames = np.where(parent >= 0, tree.user_frame[np.maximum(parent, 0)], -1)


def _step_frames(analysis: Analysis, rows: IntArray) -> IntArray:
    """Outermost user frame around each event that is no longer than a step; -1: none.

    A lambda only calls the function that runs the step, so it is passed over.
    """
    trace, tree = analysis.trace, analysis.trace.tree
    anonymous = trace.name_flags(lambda name: name.endswith(": <lambda>"))
    name = trace.column("name_id")[tree.rows] if tree.rows.size else tree.rows
    frames = found = analysis.locator.frames(rows)
    longest = 1.5 * analysis.step_ns
    while (frames >= 0).any():
        parent = np.where(frames >= 0, tree.parent[np.maximum(frames, 0)], -1)
        up = np.where(parent >= 0, tree.user_frame[np.maximum(parent, 0)], -1)
        short = (up >= 0) & (tree.end[up] - tree.start[up] <= longest)
        if not short.any():
            break
        frames = np.where(short, up, -1)
        found = np.where(short & ~anonymous[name[np.maximum(up, 0)]], up, found)
    return np.asarray(found, dtype=np.int64)


def alone(analysis: Analysis, rows: IntArray) -> npt.NDArray[np.bool_]:
    """Which device events share the device with no other kernel or collective.

    The length of a kernel that shares the multiprocessors says little about the kernel.
    """
    every = analysis.rows(Kind.KERNEL, Kind.COLLECTIVE)
    start = analysis.trace.column("ts_ns")[every]
    end = start + analysis.trace.column("dur_ns")[every]
    device = analysis.trace.column("device")[every]
    shared = np.zeros(every.size, dtype=bool)
    for index in np.unique(device):
        mine = np.flatnonzero(device == index)
        reached = np.maximum.accumulate(end[mine])
        shared[mine[1:]] |= start[mine[1:]] < reached[:-1]
        shared[mine[:-1]] |= start[mine[1:]] < end[mine[:-1]]
    at = np.minimum(np.searchsorted(every, rows), max(every.size - 1, 0))
    return np.asarray(~shared[at]) if every.size else np.ones(rows.size, dtype=bool)


def named_so(
    analysis: Analysis, rows: IntArray, test: Callable[[str], bool]
) -> npt.NDArray[np.bool_]:
    """Which of the events have a name that passes the test, asked once for each distinct name."""
    ids, which = np.unique(analysis.trace.column("name_id")[rows], return_inverse=True)
    names = analysis.trace.names
    return np.fromiter((test(names[i]) for i in ids), bool, ids.size)[which]


def persistent(analysis: Analysis, rows: IntArray) -> npt.NDArray[np.bool_]:
    """Which of the kernels launch about one block a multiprocessor on purpose."""
    return named_so(analysis, rows, is_persistent_kernel)


def multiprocessors(analysis: Analysis) -> int:
    """Multiprocessors of the busiest device; 0 when neither header nor tables know."""
    if analysis.device is None:
        return 0
    entries = analysis.trace.header.devices
    entry = next((d for d in entries if d.id == analysis.device.device), None)
    if entry is not None and entry.multiprocessors:
        return entry.multiprocessors
    return (analysis.peaks.multiprocessors or 0) if analysis.peaks else 0


def heaviest_op(analysis: Analysis, work: DeviceOps, which: IntArray) -> str:
    """Short name of the operator with most time among these events; "" when unknown."""
    ids = np.where(work.op[which] >= 0, analysis.trace.column("name_id")[work.op[which]], -1)
    known = ids >= 0
    if not known.any():
        return ""
    total = np.bincount(ids[known], weights=work.ns[which][known])
    return short_name(analysis.trace.names[int(total.argmax())])


def positions(work: DeviceOps, rows: IntArray) -> IntArray:
    """Positions of event-table rows among the device events; all must be there."""
    return np.searchsorted(work.rows, rows)
