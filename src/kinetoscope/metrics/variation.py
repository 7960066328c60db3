"""How the steps differ from each other, and what grew in the slow ones.

A median hides what happens in every fourth step. Slow steps are compared with the usual ones:
what the launching threads did longer, what the device worked longer, and whether the same
kernels or the same launches all took longer, which no line of the program explains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.activity import Activity, Cause
from kinetoscope.metrics.step_time import StepTimes
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.trace import IntArray, Trace

MIN_STEPS = 5
"""Fewer steps have no usual one."""
SLOW_FACTOR = 1.3
"""A slow step takes this much longer than the usual one; noise of a shared host stays below."""
MIN_REPEATS = 3
"""Slow steps at equal distance that are needed to speak of a period."""
STRETCHED = 1.1
"""Four of five kernels slower by this much: clocks, since no change of the work does that."""
CONTENDED = 1.5
"""Launch calls slower by this much in the median: something else used the host's cores."""
_EXPLAINS = 0.4
"""Share of the excess from which on one part explains a slow step."""
_SHORT_KERNEL_NS = 3_000
"""Durations below this have a resolution too coarse for ratios."""

Reason = Literal["clocks", "host_contention"]
DevicePart = Literal["kernels", "collectives", "copies"]


@dataclass(frozen=True)
class SlowStep:
    """One step that took longer than usual.

    Attributes:
        step: position in the recording, from 0.
        ns: its length.
        cause: what the host did longer, when that explains it.
        device: what the device did longer, when that explains it.
        grew_ns: by how much.
        reason: why nothing in the program explains it.
    """

    step: int
    ns: int
    cause: Cause | None = None
    device: DevicePart | None = None
    grew_ns: int = 0
    reason: Reason | None = None


@dataclass(frozen=True)
class Variation:
    """Lengths of the steady steps, ns, in order.

    Attributes:
        steps: their positions in the recording.
        slow: those that took longer than usual, in order.
        every: distance of the slow steps when they come back regularly.
    """

    steps: IntArray
    ns: IntArray
    slow: tuple[SlowStep, ...] = ()
    every: int | None = None

    @property
    def usual_ns(self) -> int:
        """Median of the steps that are not slow."""
        slow = [s.step for s in self.slow]
        return int(np.median(self.ns[~np.isin(self.steps, slow)]))


def step_variation(trace: Trace, times: StepTimes, activity: Activity) -> Variation | None:
    """Compare the steady steps with each other; None for fewer than `MIN_STEPS`."""
    steps, ns = _lengths(times)
    if ns.size < MIN_STEPS:
        return None
    every, slow = _periodic(ns)
    if every is None:
        slow = np.flatnonzero(ns > SLOW_FACTOR * np.median(ns))
        slow = slow[slow > 0]  # the first one warms up; that is no variation of the work
    if slow.size == 0 or slow.size > ns.size // 2:
        return Variation(steps, ns)
    parts = _parts(trace, times, activity)
    usual = np.delete(np.arange(ns.size), slow)
    found = tuple(_explained(trace, times, parts, steps, ns, int(i), usual) for i in slow)
    return Variation(steps, ns, found, every)


def _lengths(times: StepTimes) -> tuple[IntArray, IntArray]:
    """Steps and the periods that set their pace: the device's when it is the slower one."""
    steady = np.array(times.steady, dtype=np.int64)
    if times.device_bound and times.device_periods.size == steady.size - 1:
        return steady[1:], times.device_periods
    return steady, times.host_periods


def _periodic(ns: IntArray) -> tuple[int | None, IntArray]:
    """Smallest distance at which slow steps come back: each of them slower than all others.

    Such steps are the longest ones, down to a length below which the next is much shorter.
    """
    order = np.argsort(-ns, kind="stable")
    length = ns[order]
    counts = np.flatnonzero(length[:-1] > SLOW_FACTOR * length[1:]) + 1
    for count in counts[counts >= MIN_REPEATS][::-1]:
        slow = np.sort(order[:count])
        every = int(slow[1] - slow[0])
        throughout = slow[0] < every and slow[-1] + every >= ns.size
        if 2 <= every <= ns.size // MIN_REPEATS and throughout and (np.diff(slow) == every).all():
            return every, slow
    return None, np.empty(0, dtype=np.int64)


# ---- what a step is made of ------------------------------------------------------------------

_NO_CAUSE = (Cause.NOTHING, Cause.SYNC, Cause.AUTOGRAD)
"""Waiting for the device or for the autograd threads is explained by what these do."""

_Parts = dict[Cause | DevicePart, npt.NDArray[np.float64]]


def _parts(trace: Trace, times: StepTimes, activity: Activity) -> _Parts:
    """Time of every step by what the launching threads did and by what the device did, ns."""
    edges, width = trace.steps.edges, max(Cause) + 1
    total = np.zeros(trace.steps.count * width)
    for thread in _launching(trace):
        mine = activity.of_thread(thread)
        low, high = np.searchsorted(activity.start[mine], edges[[0, -1]])
        start, end, cause = (
            x[mine][low:high] for x in (activity.start, activity.end, activity.cause)
        )
        # A stretch belongs to the step in which it begins; it may end in the next one.
        step = np.searchsorted(edges, start, side="right") - 1
        total += np.bincount(step * width + cause, end - start, minlength=total.size)
    table = total.reshape(-1, width)
    parts: _Parts = {
        cause: table[:, cause]
        for cause in Cause
        if cause not in _NO_CAUSE and table[:, cause].any()
    }
    return parts | _device_parts(trace, times)


def _launching(trace: Trace) -> list[int]:
    launches = rows_of(trace, Kind.LAUNCH, Kind.GRAPH_LAUNCH, Kind.COPY_CALL)
    threads = set(np.unique(trace.column("thread")[launches]).tolist())
    return sorted(threads | ({trace.steps.thread} - {-1}))


def _device_parts(trace: Trace, times: StepTimes) -> _Parts:
    known = times.device_step >= 0
    rows, step = times.device_rows[known], times.device_step[known]
    kind, dur = trace.column("kind")[rows], trace.column("dur_ns")[rows]
    groups: dict[DevicePart, npt.NDArray[np.bool_]] = {
        "kernels": (kind == Kind.KERNEL) | (kind == Kind.MEMSET),
        "collectives": kind == Kind.COLLECTIVE,
        "copies": kind == Kind.COPY,
    }
    return {
        name: np.bincount(step[mine], dur[mine], trace.steps.count).astype(np.float64)
        for name, mine in groups.items()
        if mine.any()
    }


def _explained(
    trace: Trace,
    times: StepTimes,
    parts: _Parts,
    steps: IntArray,
    ns: IntArray,
    slow: int,
    usual: IntArray,
) -> SlowStep:
    """What one slow step did longer than the usual ones."""
    step, length = int(steps[slow]), int(ns[slow])
    excess = length - float(np.median(ns[usual]))
    grew = {k: float(v[step] - np.median(v[steps[usual]])) for k, v in parts.items()}
    like = int(steps[usual[np.argsort(ns[usual])[usual.size // 2]]])
    name = max(grew, key=lambda k: grew[k], default=None)
    if name is None or grew[name] < _EXPLAINS * excess:
        return SlowStep(step, length, reason=_stretch(trace, times, step, like))
    host = name if isinstance(name, Cause) else None
    device = None if isinstance(name, Cause) else name
    stretched = name in ("kernels", Cause.LAUNCH, Cause.OP, Cause.PYTHON)
    return SlowStep(
        step,
        length,
        host,
        device,
        round(grew[name]),
        _stretch(trace, times, step, like) if stretched else None,
    )


def _stretch(trace: Trace, times: StepTimes, step: int, like: int) -> Reason | None:
    """Did the same kernels, or the same launches, all take longer than in another step?"""
    kernels = [times.device_rows[times.device_step == s] for s in (step, like)]
    kind = trace.column("kind")
    kernels = [rows[kind[rows] == Kind.KERNEL] for rows in kernels]
    ratio = _ratios(trace, kernels, shortest=_SHORT_KERNEL_NS)
    if ratio.size >= MIN_STEPS and np.quantile(ratio, 0.2) >= STRETCHED:
        return "clocks"
    launches = rows_of(trace, Kind.LAUNCH)
    of_step = trace.steps.of(trace.column("ts_ns")[launches])
    ratio = _ratios(trace, [launches[of_step == s] for s in (step, like)], shortest=1)
    if ratio.size >= MIN_STEPS and np.median(ratio) >= CONTENDED:
        return "host_contention"
    return None


def _ratios(trace: Trace, pair: list[IntArray], *, shortest: int) -> npt.NDArray[np.float64]:
    """Durations of one step's events over those of another's, if both have the same events."""
    name, dur = trace.column("name_id"), trace.column("dur_ns")
    slow, usual = pair
    if slow.size != usual.size or not slow.size or (name[slow] != name[usual]).mean() > 0.05:
        return np.empty(0)
    long = dur[usual] >= shortest
    return np.asarray(dur[slow][long] / dur[usual][long], dtype=np.float64)
