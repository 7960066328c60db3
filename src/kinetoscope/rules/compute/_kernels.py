"""What the compute rules share: kernels of the window, peaks of the device, and dropping work."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import DeviceOps, device_ops
from kinetoscope.metrics.hardware import Peaks, peaks_of
from kinetoscope.metrics.intervals import Intervals, union
from kinetoscope.result import Location
from kinetoscope.trace.trace import IntArray

KERNEL_FLOOR_NS = 2_500
"""About the length of a kernel that does nothing; no fix makes one shorter."""


def peaks(analysis: Analysis) -> Peaks | None:
    """Peaks of the busiest device; None when the header does not say what it is."""
    if analysis.device is None:
        return None
    return peaks_of(analysis.trace.header, analysis.device.device)


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
    if not whole_step:
        return inner
    outer = analysis.locations(_step_frames(analysis, rows), top=1)
    seen = {(place.file, place.function) for place in inner}
    return inner + tuple(p for p in outer if (p.file, p.function) not in seen)


def _step_frames(analysis: Analysis, rows: IntArray) -> IntArray:
    """Rows of the outermost user frames around the events that are no longer than a step."""
    tree = analysis.trace.tree
    frames = np.unique(analysis.locator.frames(rows))
    frames = frames[frames >= 0]
    longest = 1.5 * analysis.step_ns
    while frames.size:
        parent = tree.parent[frames]
        up = np.where(parent >= 0, tree.user_frame[np.maximum(parent, 0)], -1)
        short = (up >= 0) & (tree.end[up] - tree.start[up] <= longest)
        if not short.any():
            break
        frames = np.unique(np.where(short, up, frames))
    return np.asarray(tree.rows[frames], dtype=np.int64)
