"""Where the step goes after a fix: the budget of the replayed step.

The replay says when each device event runs and when each call is made. The device's idle time
is mapped back to the host's recorded time, in which the causes are known, without what the fix
removes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kinetoscope.analysis.budgeting import scaled
from kinetoscope.analysis.core import Analysis
from kinetoscope.analysis.gains import ReplayedGain
from kinetoscope.metrics.activity import Activity
from kinetoscope.metrics.budget import (
    Line,
    by_arithmetic,
    host_lines,
    idle_lines,
    merged,
    work_lines,
)
from kinetoscope.metrics.device import DeviceActivity
from kinetoscope.metrics.idle import Gaps, explain, host_blocked
from kinetoscope.metrics.intervals import (
    Coverage,
    clip,
    complement,
    measure,
    merge,
    union,
)
from kinetoscope.metrics.ownership import owned_gaps
from kinetoscope.replay import Change, Timeline
from kinetoscope.replay.timeline import as_recorded
from kinetoscope.result import Budget
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray

LEFT_LABEL = "what the fix itself costs"


def budget_after(analysis: Analysis, gain: ReplayedGain) -> tuple[Budget, ...]:
    """Budget of a step of this rank after the likely change of a gain."""
    change, found = analysis.what_if.aftermath(gain)
    step_ns = found.step_ns
    if analysis.device is None:
        lines, steps = _host_only(analysis, change), analysis.steps
        alike = not analysis.coverage.device_missing
        return scaled(lines, steps, int(step_ns), alike=alike)
    low, high, steps = found.window
    lines = _device_lines(analysis, found, (low, high)) + _idle(analysis, change, found)
    rest = int(step_ns * steps) - (high - low)
    if rest > 0:
        lines.append(Line("unattributed", LEFT_LABEL, rest))
    return scaled(merged(lines), steps, int(step_ns))


def _device_lines(analysis: Analysis, found: Timeline, window: tuple[int, int]) -> list[Line]:
    rows, start, end = _events(analysis, found)
    inside = _activity(analysis, rows, (start, end), window)
    kind = analysis.trace.column("kind")[rows]
    kernel = kind == Kind.KERNEL
    spent = np.minimum(end, window[1]) - np.maximum(start, window[0])
    spent = np.maximum(spent[kernel], 0)
    heavy = int(spent[by_arithmetic(analysis.trace, rows[kernel])].sum())
    copy = kind == Kind.COPY
    return work_lines(
        analysis.trace,
        inside,
        heavy / max(int(spent.sum()), 1),
        copies=(rows[copy], (start[copy], end[copy])),
    )


def _events(analysis: Analysis, found: Timeline) -> tuple[IntArray, IntArray, IntArray]:
    """Rows, start and end of what the busiest device still does."""
    rows = analysis.model.event_row
    device = analysis.device
    here = found.kept & (found.end > found.begin)
    if device is not None:
        here &= analysis.trace.column("device")[rows] == device.device
    known = rows[here], found.begin[here], found.end[here]
    if found.edges.size >= 2:
        return known
    first, *rest = (np.concatenate(pair) for pair in zip(_earlier(analysis), known, strict=True))
    return first, rest[0], rest[1]


def _earlier(analysis: Analysis) -> tuple[IntArray, IntArray, IntArray]:
    """What was launched before the only step and the device still does in it, as recorded."""
    trace, device = analysis.trace, analysis.device
    rows = analysis.times.orphan_rows
    if device is not None:
        rows = rows[trace.column("device")[rows] == device.device]
    start = trace.column("ts_ns")[rows]
    end = start + trace.column("dur_ns")[rows]
    late = end > analysis.model.origin
    return rows[late], start[late], end[late]


def _activity(
    analysis: Analysis,
    rows: IntArray,
    extent: tuple[IntArray, IntArray],
    window: tuple[int, int],
) -> DeviceActivity:
    kind = analysis.trace.column("kind")[rows]
    start, end = extent
    parts = [
        clip(union(start[mine], end[mine]), *window)
        for mine in (
            np.isin(kind, (Kind.KERNEL, Kind.MEMSET)),
            kind == Kind.COLLECTIVE,
            kind == Kind.COPY,
        )
    ]
    number = analysis.device.device if analysis.device is not None else 0
    return DeviceActivity(number, parts[0], parts[1], parts[2], merge(*parts))


def _idle(analysis: Analysis, change: Change, found: Timeline) -> list[Line]:
    """Lines of the idle time by what the host does then."""
    trace = analysis.trace
    gaps = _gaps(analysis, found)
    recorded = _as_recorded(analysis, found, gaps)
    pieces = explain(trace, analysis.activity, recorded)
    kept = pieces.ns.astype(np.float64)
    for cut, part in change.layers:
        kept -= part * Coverage(cut).between(pieces.start, pieces.end)
    length = gaps.host_end - gaps.start
    total = np.bincount(pieces.gap, weights=kept, minlength=length.size)
    scale = length / np.maximum(total, 1.0)
    weights = (kept * scale[pieces.gap]).astype(np.int64)
    owner = owned_gaps(trace, recorded, pieces)
    unseen = int(length[total <= 0].sum())
    blocked = host_blocked(analysis.activity, recorded)
    return [
        Line("framework", "launch latency", unseen, host=True),
        *idle_lines(gaps, pieces, owner, weights, blocked),
    ]


def _gaps(analysis: Analysis, found: Timeline) -> Gaps:
    """Idle gaps of the device in the replay."""
    model, trace = analysis.model, analysis.trace
    low, high, _ = found.window
    rows, begin, stop = _events(analysis, found)
    start, end = complement(union(begin, stop), low, high)
    number = np.flatnonzero(np.isin(model.event_row, rows))
    if number.size == 0:  # no call is known that launched any of it
        none = np.full(start.size, -1, dtype=np.int64)
        return Gaps(start, end, none, none, start, none)
    order = np.argsort(found.begin[number], kind="stable")
    at = np.searchsorted(found.begin[number][order], end, side="left")
    known = at < number.size
    event = np.where(known, number[order][np.minimum(at, number.size - 1)], -1)
    call = np.searchsorted(model.first_event, np.maximum(event, 0), side="right") - 1
    returned = np.where(event >= 0, found.call_end[call], start)
    launch = np.where(event >= 0, model.call_row[call], -1)
    thread = np.where(launch >= 0, trace.column("thread")[np.maximum(launch, 0)], -1)
    return Gaps(
        start,
        end,
        np.where(event >= 0, model.event_row[np.maximum(event, 0)], -1),
        launch,
        np.clip(returned, start, end),
        thread.astype(np.int64),
    )


def _as_recorded(analysis: Analysis, found: Timeline, gaps: Gaps) -> Gaps:
    """The host's time in the gaps, as it was recorded."""
    start, end, until = (
        as_recorded(analysis.model, found, at) for at in (gaps.start, gaps.host_end, gaps.end)
    )
    return replace(gaps, start=start, end=np.maximum(until, end), host_end=end)


def _host_only(analysis: Analysis, change: Change) -> list[Line]:
    """Lines of a recording without a device, without what the change removes."""
    activity, low, high = analysis.activity, *analysis.times.host_window
    gone = np.zeros(activity.start.size, dtype=np.float64)
    removed = 0.0
    for cut, part in change.layers:
        gone += part * Coverage(cut).between(activity.start, activity.end)
        removed += part * measure(clip(cut, low, high))
    shorter = Activity(
        activity.thread,
        activity.start,
        activity.end - gone.astype(np.int64),
        activity.row,
        activity.cause,
    )
    lines = host_lines(analysis.trace, shorter, analysis.times)
    return [
        replace(line, ns=max(line.ns - int(removed), 0))
        if line is lines[-1]  # what is not recorded is the rest of the window
        else line
        for line in lines
    ]
