"""The analysis of one trace: memoised metrics, places in the program, what-ifs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from kinetoscope.analysis.locate import Locator
from kinetoscope.metrics.activity import Activity, Cause, host_activity, node_causes
from kinetoscope.metrics.comm import Collectives, collectives
from kinetoscope.metrics.coverage import Coverage, launch_coverage
from kinetoscope.metrics.device import DeviceActivity, device_activity
from kinetoscope.metrics.idle import Gaps, IdlePieces, explain, find_gaps
from kinetoscope.metrics.intervals import Intervals, clip, empty, intersect, measure, union
from kinetoscope.metrics.overhead import LEAST, MOST
from kinetoscope.metrics.ranks import Matches, match_ranks
from kinetoscope.metrics.step_time import StepTimes, step_times
from kinetoscope.metrics.stretches import HostTime, host_time
from kinetoscope.metrics.waits import Waits, host_waits
from kinetoscope.replay import Change, Model, build_model, simulate
from kinetoscope.result import Gain, Location, NsRange
from kinetoscope.trace.kinds import DEVICE_WORK, Kind
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.trace import IntArray, Trace

T = TypeVar("T")

HOST_ERROR = 0.3
"""Eight of ten true step times differ less than this from the likely one, in its host part."""

Need = Literal["device", "launches", "shapes", "stacks", "memory", "ops", "steps", "ranks"]
"""What a trace must contain for a rule to be able to fire."""


@dataclass(frozen=True)
class AnalysisOptions:
    """What the user knows better than the trace.

    Attributes:
        real_step_ns: unprofiled step time, ns; pins the profiling overhead.
        real_range: the same with its own spread, when it was measured.
        source_root: folder with the program's sources.
    """

    real_step_ns: int | None = None
    real_range: NsRange | None = None
    source_root: Path | None = None


@dataclass
class Analysis:
    """One rank's trace with everything that was computed from it so far."""

    trace: Trace
    options: AnalysisOptions = field(default_factory=AnalysisOptions)
    peers: tuple[Analysis, ...] = ()
    """The other ranks of the job."""

    def __post_init__(self) -> None:
        self._memo: dict[Callable[[Trace], object], object] = {}
        self._replays: dict[int, float] = {}
        self._matches: Matches | None = None

    def get(self, metric: Callable[[Trace], T]) -> T:
        """A metric of the trace, computed once."""
        if metric not in self._memo:
            self._memo[metric] = metric(self.trace)
        return self._memo[metric]  # type: ignore[return-value]

    # ---- what is there -------------------------------------------------------------------

    def has(self, need: Need) -> bool:
        """Does the trace contain what a rule needs?"""
        return self._content[need]

    @cached_property
    def _content(self) -> dict[Need, bool]:
        trace, kind = self.trace, self.trace.column("kind")
        return {
            "device": bool(np.isin(kind, DEVICE_WORK).any()),
            "launches": self.coverage.events_linked > 0,
            "shapes": bool((trace.column("dims_id") >= 0).any()),
            "stacks": bool((kind == Kind.PYTHON).any()),
            "memory": trace.memory.height > 0,
            "ops": bool((kind == Kind.CPU_OP).any()),
            "steps": trace.steps.count >= 2,
            "ranks": bool(self.peers),
        }

    @cached_property
    def coverage(self) -> Coverage:
        """Completeness of the device timeline."""
        return launch_coverage(self.trace)

    @cached_property
    def times(self) -> StepTimes:
        """Step times as recorded."""
        return step_times(self.trace)

    @cached_property
    def activity(self) -> Activity:
        """What each host thread was doing."""
        return host_activity(self.trace, self.get(node_causes))

    @cached_property
    def waits(self) -> Waits:
        """Host calls that wait for the device."""
        return host_waits(self.trace, self.get(node_causes))

    @cached_property
    def host_time(self) -> HostTime:
        """What the launching threads spend their time on."""
        return host_time(self.trace, self.activity)

    @cached_property
    def devices(self) -> tuple[DeviceActivity, ...]:
        """Activity of each device."""
        return device_activity(self.trace)

    @cached_property
    def device(self) -> DeviceActivity | None:
        """The busiest device; None for a host-only trace."""
        return max(self.devices, key=lambda d: measure(d.busy), default=None)

    @cached_property
    def gaps(self) -> Gaps:
        """Idle gaps of the busiest device in the step window."""
        if self.device is None:
            none = np.empty(0, dtype=np.int64)
            return Gaps(none, none, none, none, none, none)
        return find_gaps(self.trace, self.device, self.times)

    @cached_property
    def pieces(self) -> IdlePieces:
        """The host-caused part of the gaps, by what the host was doing."""
        return explain(self.trace, self.activity, self.gaps)

    # ---- other ranks ---------------------------------------------------------------------

    @property
    def comm(self) -> Collectives:
        """This rank's collectives."""
        return self.get(collectives)

    @cached_property
    def ranks(self) -> tuple[Analysis, ...]:
        """All ranks of the job, this one included, by rank."""
        return tuple(sorted((self, *self.peers), key=lambda a: (a.rank, a.trace.path)))

    @property
    def rank(self) -> int:
        """Rank as recorded or told by the file name; 0 when unknown."""
        return self.trace.header.rank or 0

    @property
    def place(self) -> int:
        """Position of this rank in `ranks`, and row in `matches`."""
        return next(i for i, a in enumerate(self.ranks) if a is self)

    @property
    def matches(self) -> Matches:
        """The collectives that were found on several ranks; computed once for the job."""
        found = self._matches
        if found is None:
            found = match_ranks(
                [a.comm for a in self.ranks],
                [a.trace.header.base_time_ns for a in self.ranks],
            )
            for analysis in self.ranks:
                analysis._matches = found
        return found

    # ---- time ----------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Number of steps in the window that the budget speaks of."""
        return max(self.times.steps_in_window, 1)

    @property
    def step_ns(self) -> int:
        """Step time as recorded."""
        return self.times.recorded_ns

    @property
    def window(self) -> tuple[int, int]:
        """The step window: on the device's timeline, or the host's without a device."""
        return self.times.window if self.device else self.times.host_window

    @cached_property
    def own_model(self) -> Model:
        """The recording as host calls and device events."""
        return build_model(self.trace, self.times)

    @cached_property
    def model(self) -> Model:
        """The same; in a job it knows how much of its waiting for other ranks is profiling."""
        from kinetoscope.analysis.job import inflated_waiting

        own = self.own_model
        return replace(own, inflated=inflated_waiting(self)) if self.peers else own

    @cached_property
    def _deflation(self) -> tuple[float, float, float]:
        """Deflation of the likely, the slowest and the fastest true step."""
        real = self.options.real_step_ns
        if real is not None:
            pinned = _solve(lambda f: simulate(self.model, deflate=f).step_ns, float(real))
            return pinned, pinned, pinned
        return 1.0, LEAST, MOST

    @property
    def deflations(self) -> tuple[float, float, float]:
        """How much profiling overhead to take off: likely, slowest and fastest true step."""
        return self._deflation

    def _base_ns(self, deflate: float) -> float:
        key = round(deflate * 1000)
        if key not in self._replays:
            self._replays[key] = max(simulate(self.model, deflate=deflate).step_ns, 1.0)
        return self._replays[key]

    @cached_property
    def step_time(self) -> NsRange:
        """Bracket of the true step time: recorded above, without profiling overhead below."""
        recorded = self.step_ns
        if self.options.real_step_ns is not None:
            real = self.options.real_step_ns
            if self.options.real_range is not None:
                return self.options.real_range
            return NsRange(real, real, real)
        mid_f, _, low_f = self._deflation
        scale = recorded / self._base_ns(0.0)
        floor = min(self.busy_per_step_ns - self.waiting_per_step_ns, recorded)
        mid = min(max(int(self._base_ns(mid_f) * scale), floor), recorded)
        fast = min(self._base_ns(low_f) * scale, floor + (1 - HOST_ERROR) * (mid - floor))
        low = min(max(int(fast), floor), mid)
        low = max(low - self.lone_waiting_ns, 1)
        return NsRange(low, mid, recorded)

    @cached_property
    def lone_waiting_ns(self) -> int:
        """Exposed communication of a step of a rank that was given without its peers.

        All of it may be waiting for a peer that profiling slowed down, so none of it is certain.
        """
        if self.peers or self.device is None:
            return 0
        inside = self.device.within(*self.times.window)
        return measure(inside.exposed_comm) // self.steps

    @cached_property
    def waiting_per_step_ns(self) -> int:
        """Part of the device's work that is waiting for other ranks, as far as known."""
        if not self.peers:
            return 0
        from kinetoscope.analysis.job import waits

        return waits(self).waiting_ns // self.steps

    @cached_property
    def busy_per_step_ns(self) -> int:
        """Device work of a step: no step can be shorter while this work remains."""
        if self.device is None:
            return 0
        low, high = self.times.window
        return measure(clip(self.device.busy, low, high)) // self.steps

    @cached_property
    def replay_error(self) -> float:
        """|replayed / recorded - 1| without a change: how far the model can be trusted."""
        return abs(self._base_ns(0.0) / max(self.step_ns, 1) - 1.0)

    def speedup(self, change: Change, deflate: float) -> float:
        """Step speed-up of a change when profiling cost this many times the modelled overhead."""
        after = simulate(self.model, change, deflate=deflate).step_ns
        return self._base_ns(deflate) / max(after, 1.0)

    def gain(self, low: Change, mid: Change | None = None, high: Change | None = None) -> Gain:
        """Step speed-up of a change, as a range.

        Args:
            low: the change at its most cautious.
            mid: at its most likely; `low` when not given.
            high: at its best; `mid` when not given.

        The range also covers how much of the recorded host time was profiling.
        """
        mid = mid or low
        high = high or mid
        mid_f, slow_f, fast_f = self._deflation

        def after(change: Change, deflate: float) -> float:
            return max(simulate(self.model, change, deflate=deflate).step_ns, 1.0)

        base = {f: self._base_ns(f) for f in {mid_f, slow_f, fast_f}}
        middle = max(base[mid_f] / after(mid, mid_f), 1.0)
        # Profiling may have inflated what the fix removes and what it leaves to a different
        # degree: the likely part that goes is also set against the slowest remainder, the largest
        # one and the likely step against the fastest.
        slowest, fastest = after(low, slow_f), after(high, fast_f)
        likely = max(base[mid_f] - after(low, mid_f), 0.0)
        most = max(base[slow_f] - after(high, slow_f), 0.0)
        lows = [base[slow_f] / slowest, 1 + likely / slowest, base[fast_f] / after(low, fast_f)]
        highs = [base[fast_f] / fastest, base[mid_f] / fastest, base[slow_f] / after(high, slow_f)]
        highs.append(1 + most / fastest)
        slack = 1.0 + max(self.replay_error - 0.05, 0.0)
        bottom = max(min(*lows, middle) / slack, 1.0)
        top = max(*highs, middle) * slack
        return Gain(round(bottom, 3), round(middle, 3), round(top, 3), basis="replay")

    # ---- places --------------------------------------------------------------------------

    @cached_property
    def locator(self) -> Locator:
        """Finds the user's function, module and line of events."""
        return Locator(self.trace, self.options.source_root)

    def locations(
        self,
        rows: IntArray,
        weights: IntArray | None = None,
        *,
        calls: Sequence[str] = (),
        top: int = 3,
    ) -> tuple[Location, ...]:
        """Places in the user's program that the events come from, heaviest first.

        Args:
            rows: event-table rows, host or device.
            weights: what each row weighs; its duration when not given.
            calls: names of the calls that may have made them (`item`, `cpu`), to find the
                exact line when the source is at hand.
            top: how many places at most.
        """
        if weights is None:
            weights = self.trace.column("dur_ns")[rows]
        return self.locator.locations(rows, weights, calls=calls, top=top)

    # ---- idle time -----------------------------------------------------------------------

    @property
    def steps_on_host(self) -> int:
        """Number of steady steps on the host."""
        return max(len(self.times.steady), 1)

    def idle_under(self, *causes: Cause) -> Intervals:
        """Idle time of the device, in the step window, in which the host did one of these."""
        mine = np.isin(self.pieces.cause, causes)
        return union(self.pieces.start[mine], self.pieces.end[mine])

    def idle_of(self, rows: IntArray) -> Intervals:
        """Idle time of the device while one of these host events (or what it called) ran."""
        pieces = union(self.pieces.start, self.pieces.end)
        return intersect(pieces, self.extent(rows))

    def host_event_during(self, low: int, high: int) -> int:
        """Row of the innermost host event that fills most of [low, high); -1: none.

        Among the launching threads and the one with the steps.
        """
        activity = self.activity
        threads = np.union1d(self.model.host_threads, [self.trace.steps.thread])
        length = np.minimum(activity.end, high) - np.maximum(activity.start, low)
        length = np.where(np.isin(activity.thread, threads), length, 0)
        return int(activity.row[int(np.argmax(length))]) if length.max(initial=0) > 0 else -1

    # ---- selections ----------------------------------------------------------------------

    def in_window(self, rows: IntArray) -> IntArray:
        """Those of the rows that start inside the step window."""
        ts = self.trace.column("ts_ns")[rows]
        low, high = self.window
        return rows[(ts >= low) & (ts < high)]

    def in_steps(self, rows: IntArray) -> IntArray:
        """Those of the (host) rows that start inside the steady steps."""
        ts = self.trace.column("ts_ns")[rows]
        low, high = self.times.host_window
        return rows[(ts >= low) & (ts < high)]

    def rows(self, *kinds: Kind) -> IntArray:
        """All rows of these kinds, in time order."""
        return rows_of(self.trace, *kinds)

    def named(self, *names: str) -> IntArray:
        """All rows with exactly one of these names."""
        ids = [i for i, name in enumerate(self.trace.names) if name in names]
        return np.flatnonzero(np.isin(self.trace.column("name_id"), ids))

    def matching(self, test: Callable[[str], bool]) -> IntArray:
        """All rows whose name passes the test (called once per distinct name)."""
        flags = np.fromiter((test(n) for n in self.trace.names), bool, len(self.trace.names))
        return np.flatnonzero(np.append(flags, False)[self.trace.column("name_id")])

    def extent(self, rows: IntArray) -> Intervals:
        """Union of the rows' intervals, ns."""
        if rows.size == 0:
            return empty()
        ts = self.trace.column("ts_ns")[rows]
        return union(ts, ts + self.trace.column("dur_ns")[rows])


def _solve(step: Callable[[float], float], wanted: float) -> float:
    """Deflation that gives the wanted step time, by bisection; within [0, 4]."""
    low, high = 0.0, 4.0
    if step(low) <= wanted:
        return low
    for _ in range(24):
        middle = (low + high) / 2
        if step(middle) > wanted:
            low = middle
        else:
            high = middle
    return high
