"""The budget of an analysis: recorded lines, deflated and scaled to the step time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from msgspec import structs

from kinetoscope.analysis.core import Analysis
from kinetoscope.analysis.job import waiting_lines
from kinetoscope.metrics.activity import Cause
from kinetoscope.metrics.budget import (
    HOST_WORK_LABELS,
    IDLE_LINES,
    Line,
    device_lines,
    family_compute_share,
    host_lines,
    idle_lines,
    merged,
)
from kinetoscope.metrics.idle import host_blocked
from kinetoscope.metrics.overhead import event_overhead_ns
from kinetoscope.metrics.ownership import owned_gaps
from kinetoscope.result import Budget
from kinetoscope.trace.trace import IntArray

_LEAST_HOST = 0.1
"""Part of the host's idle time that remains where device work fills the step."""
_NOTABLE = 0.1
"""Part of a step that is worth a line of its own."""
SLOW_STEPS_LABEL = "slow steps that were not recorded"


def recorded_lines(analysis: Analysis) -> list[Line]:
    """Budget lines over the step window, as recorded but with deflated host pieces."""
    trace, times = analysis.trace, analysis.times
    if analysis.device is None:
        lines = merged(host_lines(trace, analysis.activity, times))
        return merged(map(_launching, lines)) if analysis.coverage.device_missing else lines
    share = family_compute_share(trace, times)
    owner = owned_gaps(trace, analysis.gaps, analysis.pieces)
    weights = _deflated(analysis)
    lines = device_lines(trace, analysis.device, times, share)
    if analysis.peers:
        lines = _without_waiting(analysis, lines)
    blocked = host_blocked(analysis.activity, analysis.gaps)
    return merged(lines + idle_lines(analysis.gaps, analysis.pieces, owner, weights, blocked))


def _launching(line: Line) -> Line:
    """Operators whose kernels were not recorded only launched them: that is host time."""
    if line.class_ in ("compute", "memory") and line.label in HOST_WORK_LABELS:
        class_, label = IDLE_LINES[Cause.OP]
        return replace(line, class_=class_, label=label, host=True)
    return line


def _without_waiting(analysis: Analysis, lines: list[Line]) -> list[Line]:
    """Exposed communication without the waiting, which goes to what the late rank was doing."""
    waiting, taken = waiting_lines(analysis)
    kept = [
        replace(line, ns=line.ns - taken) if line.class_ == "communication" else line
        for line in lines
    ]
    return kept + waiting


def _deflated(analysis: Analysis) -> IntArray:
    """Length of each idle piece without the overhead of the events that start in it."""
    pieces, trace = analysis.pieces, analysis.trace
    cost = event_overhead_ns(trace)
    use = np.flatnonzero((cost > 0) & np.isin(trace.column("thread"), analysis.model.host_threads))
    ts = trace.column("ts_ns")[use]
    total = np.concatenate(([0.0], np.cumsum(cost[use])))
    inside = total[np.searchsorted(ts, pieces.end)] - total[np.searchsorted(ts, pieces.start)]
    return np.asarray(np.maximum(pieces.ns - inside, 0.1 * pieces.ns), dtype=np.int64)


def budget(analysis: Analysis) -> tuple[Budget, ...]:
    """Lines that sum to the likely step time exactly, longest first.

    Time in which the device works is taken as recorded; idle time that the host caused is scaled
    to what the likely step time leaves for it. Where the processor itself does the work and the
    recorded steps were quicker, its pace was another one, and all lines grow alike; slow steps
    among those that were timed, such as checkpoints, are nobody's if they were not recorded.
    """
    target = analysis.step_time.mid
    lines = recorded_lines(analysis)
    captured = analysis.trace.sidecar
    if captured is not None and captured.light is not None and captured.light.lines:
        from kinetoscope.analysis.light import with_light

        lines = with_light(analysis, lines, captured.light)
    faults = _page_faults_ns(analysis, target)
    alike = analysis.device is None and not analysis.coverage.device_missing
    if alike:
        lines = lines + _slow_steps(analysis, lines, target - faults)
    rows = scaled(lines, analysis.steps, target - faults, alike=alike)
    if not faults:
        return rows
    rows = (Budget("memory", "page faults", faults, 0.0), *rows)
    rows = tuple(structs.replace(row, share=round(row.ns / target, 6)) for row in rows)
    return tuple(sorted(rows, key=lambda row: -row.ns))


def _page_faults_ns(analysis: Analysis, target: int) -> int:
    """What faults take of an unprofiled step that the recorded ones did not have."""
    captured = analysis.trace.sidecar
    base = captured.baseline if captured else None
    if base is None or analysis.options.real_step_ns != base.step_ns:
        return 0
    return min(base.ended_faults_ns, max(target - analysis.step_ns, 0))


def _slow_steps(analysis: Analysis, lines: list[Line], target: int) -> list[Line]:
    """Mean beyond both the median and what was recorded: a few steps took it; [] when little."""
    captured = analysis.trace.sidecar
    base = captured.baseline if captured else None
    if base is None or not base.host_median_ns or analysis.options.real_step_ns != base.step_ns:
        return []
    recorded = sum(line.ns for line in lines) / analysis.steps
    missing = target - max(recorded, base.host_median_ns)
    if recorded == 0 or missing < _NOTABLE * target:
        return []
    return [Line("unattributed", SLOW_STEPS_LABEL, round(missing * analysis.steps))]


def scaled(
    lines: list[Line], steps: int, target: int, *, alike: bool = False
) -> tuple[Budget, ...]:
    """Lines over some steps as the budget of one step of `target` ns.

    Args:
        lines: what was recorded.
        steps: over so many steps.
        target: what a step takes, ns.
        alike: a step that took longer than the recorded ones did so in all lines.
    """
    if not lines or sum(line.ns for line in lines) == 0:
        return (Budget("unattributed", "nothing recorded", target, 1.0),)
    fixed = sum(line.ns for line in lines if not line.host) / steps
    host = sum(line.ns for line in lines if line.host) / steps
    if fixed >= target or host == 0:
        # The device (or a late rank) fills the step by itself: the host only seemed to be late.
        fixed_scale = target / (fixed + _LEAST_HOST * host)
        host_scale = _LEAST_HOST * fixed_scale
    elif alike and target > fixed + host:
        fixed_scale = host_scale = target / (fixed + host)
    else:
        fixed_scale, host_scale = 1.0, (target - fixed) / host
    exact = [line.ns / steps * (host_scale if line.host else fixed_scale) for line in lines]
    return _rounded(lines, exact, target)


def _rounded(lines: list[Line], exact: list[float], target: int) -> tuple[Budget, ...]:
    whole = [int(value) for value in exact]
    whole[int(np.argmax(exact))] += target - sum(whole)
    rows = [
        Budget(line.class_, line.label, ns, round(ns / target, 6))
        for line, ns in zip(lines, whole, strict=True)
        if ns > 0
    ]
    return tuple(sorted(rows, key=lambda row: -row.ns))
