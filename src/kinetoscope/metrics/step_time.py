"""How long a step takes as recorded, and which stretch of the recording stands for it (M-1).

The host-side distance of two step marks says how fast the host *issues* steps; the distance of
the ends of their device work says how fast the device *finishes* them. The slower of the two is
the pace of the program. Device events belong to the step in which they were launched: a device
that lags behind carries kernels of steps that began before the recording, and those must not
be counted as work of the recorded steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kinetoscope.trace.frames import is_loader_epoch_frame, is_loader_of_processes
from kinetoscope.trace.kinds import DEVICE_WORK, Kind
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.trace import IntArray, Trace

_FIRST_STEP_FACTOR = 1.5
_IRREGULAR = 0.5
"""Coefficient of variation of the periods above which medians say nothing about the pace."""
_QUEUED_NS = 1_000_000
"""A first kernel this long after its launch had work before it that was not recorded."""


@dataclass(frozen=True)
class StepTimes:
    """Step times as recorded, ns.

    Attributes:
        recorded_ns: the step time T = max(median host period, median device period).
        window: stretch of the device timeline that stands for the steady steps, [low, high).
        host_window: the steady steps on the host.
        steps_in_window: how many steps the window holds.
        host_periods: distance of consecutive step marks.
        device_periods: distance of the ends of consecutive steps' device work.
        steady: which steps are steady; the first one is dropped when it is much longer.
        orphan_rows: device events whose launch lies before the first step or was not recorded.
        device_step: step of each row of `device_rows`, -1 for orphans.
        device_rows: all device work rows, in time order.
        cv: coefficient of variation of the periods that set the pace; 0 for fewer than two.
        irregular: True when some steps take several times as long as the others (a checkpoint, a
            new epoch): then means stand for the pace, which a median would leave out.
        low_ratio: how much shorter than recorded the typical step may be, since few steps vary: the
            lower end of an interval that holds the true median in eight of ten cases.
        lead_ns: time before the window of a recording without steps, in which the device worked on
            what was launched before; no part of the step.
    """

    recorded_ns: int
    window: tuple[int, int]
    host_window: tuple[int, int]
    steps_in_window: int
    host_periods: IntArray
    device_periods: IntArray
    steady: tuple[int, ...]
    orphan_rows: IntArray
    device_rows: IntArray
    device_step: IntArray
    cv: float
    irregular: bool = False
    low_ratio: float = 1.0
    lead_ns: int = 0

    @property
    def device_bound(self) -> bool:
        """True when the device's pace is the slower one by more than noise."""
        if self.device_periods.size == 0 or self.host_periods.size == 0:
            return False
        return bool(np.median(self.device_periods) > 1.05 * np.median(self.host_periods))


def step_times(trace: Trace) -> StepTimes:
    """Measure the step (M-1)."""
    steps = trace.steps
    rows = rows_of(trace, *DEVICE_WORK)
    device_step = _launch_step(trace, rows)
    ends = _device_edges(trace, rows, device_step, steps.count)
    starved = _starved_at_first(trace)
    steady = _steady(np.diff(steps.edges), warm=starved)
    first, last = steady[0], steady[-1]
    host = np.diff(steps.edges)[list(steady)]
    device, window, inside = _device_pace(ends, steady)
    if not inside:
        window = _whole_window(trace, rows, device_step, steps.edges, first, last)
        inside = len(steady)
    host_pace = float(np.median(host))
    irregular = _cv(device if device.size else host) > _IRREGULAR
    # The device's periods begin after the first step; its wait shows on the host only.
    irregular |= starved and _cv(host) > _IRREGULAR
    device_pace = float(np.median(device)) if device.size else 0.0
    if irregular:
        device_pace = float(window[1] - window[0]) / inside if device.size else 0.0
        host_pace = float(host.mean())
    pace = max(host_pace, device_pace)
    lead_ns = 0
    if not device.size and rows.size:
        # One step: the device may finish after the host has gone on.
        lead_ns = max(window[0] - int(steps.edges[first]), 0)
        pace = max(pace - lead_ns, float(window[1] - window[0]) / inside)
    leading = device if device_pace >= host_pace and device.size else host
    return StepTimes(
        recorded_ns=max(round(pace), 1),
        window=window,
        host_window=(int(steps.edges[first]), int(steps.edges[last + 1])),
        steps_in_window=inside,
        host_periods=host,
        device_periods=device,
        steady=steady,
        orphan_rows=rows[device_step < 0],
        device_rows=rows,
        device_step=device_step,
        cv=_cv(leading),
        irregular=irregular,
        low_ratio=1.0 if irregular else _low_ratio(leading, pace),
        lead_ns=lead_ns,
    )


def _launch_step(trace: Trace, rows: IntArray) -> IntArray:
    """Step in which each device event was launched; -1 for orphans.

    In a recording without any launch record (activities filtered, replayed graphs of some
    vendors) the device event's own start decides.
    """
    launch = trace.links.launch[rows]
    ts = trace.column("ts_ns")
    if rows.size and (launch < 0).all():
        return trace.steps.of(ts[rows])
    return np.where(launch >= 0, trace.steps.of(ts[np.maximum(launch, 0)]), -1)


def _device_edges(trace: Trace, rows: IntArray, step: IntArray, count: int) -> IntArray:
    """Latest device end of each step; -1 for a step without device work."""
    ends = np.full(count, -1, dtype=np.int64)
    known = step >= 0
    end = trace.column("ts_ns")[rows] + trace.column("dur_ns")[rows]
    np.maximum.at(ends, step[known], end[known])
    return ends


_MOST_OF_IT = 0.5


def _starved_at_first(trace: Trace) -> bool:
    """Is the first recorded step long only because it waits for the loader's workers?

    Workers that are too slow deliver in bursts: a step waits for all of them, and the next ones
    find a batch each. That comes back. It is no start-up when the program took steps before
    (the mark says its number) and no epoch begins in it.
    """
    steps = trace.steps
    if steps.source != "profiler_step" or steps.count < 2 or _first_number(trace) == 0:
        return False
    names, name_id, kind = trace.names, trace.column("name_id"), trace.column("kind")
    ts, dur = trace.column("ts_ns"), trace.column("dur_ns")
    first = (ts >= steps.edges[0]) & (ts < steps.edges[1])
    begins = np.array([is_loader_epoch_frame(n) for n in names] + [False])
    waits = np.array([is_loader_of_processes(n) for n in names] + [False])
    if (first & begins[name_id]).any():
        return False
    waited = int(dur[first & waits[name_id] & (kind == Kind.LOADER)].sum())
    length = np.diff(steps.edges)
    return bool(waited >= _MOST_OF_IT * (length[0] - np.median(length[1:])))


def _first_number(trace: Trace) -> int:
    """Number in the first `ProfilerStep#3`; 0 when it has none."""
    rows = rows_of(trace, Kind.STEP)
    number = trace.names[int(trace.column("name_id")[rows[0]])].rpartition("#")[2]
    return int(number) if number.isdigit() else 0


def _steady(host: IntArray, *, warm: bool = False) -> tuple[int, ...]:
    """Positions of the steady steps: without a first step that is still warming up.

    A long first step that a later one resembles is no warm-up but something that comes back.
    """
    if host.size >= 3 and not warm:
        usual = float(np.median(host[1:]))
        alike = usual + 0.5 * (host[0] - usual)
        if host[0] > _FIRST_STEP_FACTOR * usual and host[1:].max() < alike:
            return tuple(range(1, host.size))
    return tuple(range(host.size))


def _device_pace(ends: IntArray, steady: tuple[int, ...]) -> tuple[IntArray, tuple[int, int], int]:
    """Device periods of the steady steps, and the window from the first to the last edge.

    The first steady step's own end is the left edge: its period may hold the warm-up before it.
    """
    edges = ends[steady[0] : steady[-1] + 1]
    edges = edges[edges >= 0]
    edges = np.maximum.accumulate(edges) if edges.size else edges
    if edges.size < 2 or edges[-1] <= edges[0]:
        return np.empty(0, dtype=np.int64), (0, 0), 0
    return np.diff(edges), (int(edges[0]), int(edges[-1])), edges.size - 1


def _whole_window(
    trace: Trace, rows: IntArray, step: IntArray, edges: IntArray, first: int, last: int
) -> tuple[int, int]:
    """Host window, stretched to the end of the device work that it launched."""
    low, high = int(edges[first]), int(edges[last + 1])
    mine = rows[(step >= first) & (step <= last)]
    if mine.size:
        ts, dur = trace.column("ts_ns"), trace.column("dur_ns")
        high = max(high, int((ts[mine] + dur[mine]).max()))
        if trace.steps.source == "whole_trace":
            low = max(low, _first_useful_moment(trace, mine, low))
    return low, high


def _first_useful_moment(trace: Trace, rows: IntArray, low: int) -> int:
    """Start of the device work when the device was evidently still busy with earlier work.

    A recording of one iteration of a running server begins while the device works on the
    iteration before, whose kernels were not recorded: the first kernel then starts long after
    its launch. That time is no idle time, so the window begins with the kernel.
    """
    first = int(rows[0])
    launch = int(trace.links.launch[first])
    ts, dur = trace.column("ts_ns"), trace.column("dur_ns")
    if launch >= 0 and ts[first] - (ts[launch] + dur[launch]) > _QUEUED_NS:
        return int(ts[first])
    return low


def _low_ratio(periods: IntArray, pace: float) -> float:
    """Lower end of an interval around the median of these periods, as a share of the pace.

    Whatever the periods' distribution, the k-th smallest of n lies above the true median when fewer
    than k of n fair coins show heads: rarer than once in ten for this k, by the normal
    approximation with a correction for continuity. Up to six periods it is the smallest.
    """
    n = periods.size
    if n < 2:
        return 1.0
    k = max(int(n / 2 - _ONE_IN_TEN * math.sqrt(n) / 2 + 0.5), 1)
    return min(float(np.partition(periods, k - 1)[k - 1]) / max(pace, 1.0), 1.0)


_ONE_IN_TEN = 1.2816
"""Quantile of the normal distribution."""


def _cv(periods: IntArray) -> float:
    if periods.size < 2 or periods.mean() <= 0:
        return 0.0
    return float(periods.std() / periods.mean())
