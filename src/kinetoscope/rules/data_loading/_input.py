"""What the rules about input share: the loader's calls, the host link, the program's kind."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Intervals, clip, intersect, measure
from kinetoscope.metrics.ownership import TO_DEVICE
from kinetoscope.metrics.transfers import Transfers
from kinetoscope.trace.frames import is_engine_call, is_optimizer_step
from kinetoscope.trace.kinds import CopyKind, Kind
from kinetoscope.trace.trace import IntArray

USUAL_H2D_BYTES_PER_S = 24e9
"""Copies from pinned memory when the device is unknown: PCIe 4.0 x16, less its protocol."""
_TIMED_BYTES = 1 << 20
"""Smaller copies are limited by latency; their speed says nothing about the link."""


def loader_call(analysis: Analysis, *arguments: str) -> str:
    """A call of `DataLoader` to paste: with pinned batches only where there is a device."""
    pinned = ("pin_memory=True",) if analysis.device is not None else ()
    return f"DataLoader({', '.join((*arguments, *pinned))})"


def loader_rows(analysis: Analysis, test: Callable[[str], bool]) -> IntArray:
    """Rows of the loader's ranges inside the steady steps whose name passes the test."""
    rows = analysis.in_steps(analysis.rows(Kind.LOADER))
    names = [analysis.trace.names[i] for i in analysis.trace.column("name_id")[rows]]
    return np.asarray(rows[np.array([test(name) for name in names], dtype=bool)])


def loader_work(analysis: Analysis, rows: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Innermost events of the program's functions inside these ranges: row, start, end."""
    tree = analysis.trace.tree
    segments = tree.segments
    low, high = analysis.extent(rows)
    at = np.searchsorted(low, segments.start, side="right") - 1
    chosen = (at >= 0) & (segments.end <= high[np.maximum(at, 0)])
    chosen &= np.isin(segments.thread, np.unique(analysis.trace.column("thread")[rows]))
    chosen &= tree.user_frame[tree.node_of[segments.row]] >= 0
    # Frames around the loader's range (the training loop) are not inside it.
    frame = tree.user_frame[tree.node_of[segments.row]]
    inside = tree.start[np.maximum(frame, 0)] >= low[np.maximum(at, 0)]
    inner = chosen & inside
    chosen = inner if inner.any() else chosen
    return segments.row[chosen], segments.start[chosen], segments.end[chosen]


def exposed_ratio(analysis: Analysis, stretch: Intervals) -> float:
    """Part of a stretch of host time in which the device is idle; 1 without a device."""
    if analysis.device is None:
        return 1.0
    seen = clip(stretch, *analysis.window)
    return measure(intersect(seen, idle(analysis))) / max(measure(seen), 1)


def idle(analysis: Analysis) -> Intervals:
    """The host-caused idle time of the device in the step window."""
    return analysis.idle_under(*np.unique(analysis.pieces.cause))


def pinned_speed(analysis: Analysis, copies: Transfers) -> tuple[float, bool]:
    """Bytes a second of copies from pinned memory, and whether this recording measured it."""
    timed = (copies.kind == CopyKind.H2D_PINNED) & (copies.bytes >= _TIMED_BYTES)
    if timed.any():
        return float(np.median(copies.bytes[timed] / np.maximum(copies.ns[timed], 1)) * 1e9), True
    known = analysis.peaks.h2d_gbps if analysis.peaks else None
    return (known * 1e9 if known else USUAL_H2D_BYTES_PER_S), False


def in_window(analysis: Analysis, copies: Transfers) -> npt.NDArray[np.bool_]:
    """Copies to the device that were launched in the steady steps."""
    ts = analysis.trace.column("ts_ns")
    low, high = analysis.times.host_window
    at = np.where(copies.call >= 0, ts[np.maximum(copies.call, 0)], -1)
    return np.asarray(np.isin(copies.kind, TO_DEVICE) & (at >= low) & (at < high))


def trains(analysis: Analysis) -> bool:
    """Does the recording show training (a backward pass, an optimizer) or a DataLoader?"""
    if analysis.rows(Kind.LOADER).size:
        return True
    names = analysis.trace.names
    return any(is_engine_call(name) or is_optimizer_step(name) for name in names)
