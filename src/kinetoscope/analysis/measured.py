"""What was computed from one trace: memoised metrics and selections of its events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from kinetoscope.metrics.activity import Activity, Cause, host_activity, node_causes
from kinetoscope.metrics.cost import kernel_costs
from kinetoscope.metrics.coverage import Coverage, launch_coverage
from kinetoscope.metrics.device import DeviceActivity, device_activity
from kinetoscope.metrics.hardware import Peaks, peaks_of
from kinetoscope.metrics.idle import Gaps, IdlePieces, explain, find_gaps
from kinetoscope.metrics.intervals import Intervals, clip, empty, intersect, measure, union
from kinetoscope.metrics.roofline import Roofline, roofline
from kinetoscope.metrics.step_time import StepTimes, step_times
from kinetoscope.metrics.stretches import HostTime, host_time
from kinetoscope.metrics.waits import Waits, host_waits
from kinetoscope.result import NsRange
from kinetoscope.trace.kinds import DEVICE_WORK, Kind
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.trace import IntArray, Trace

if TYPE_CHECKING:
    from kinetoscope.analysis.core import Analysis

T = TypeVar("T")

Need = Literal["device", "launches", "shapes", "stacks", "memory", "ops", "steps", "ranks"]
"""What a trace must contain for a rule to be able to fire."""


@dataclass(frozen=True)
class AnalysisOptions:
    """What the user knows better than the trace.

    Attributes:
        real_step_ns: unprofiled step time, ns; pins the profiling overhead.
        real_range: the same with its own spread, when it was measured.
        source_root: folder with the program's sources.
        device_peaks: what the recording's devices can do, in place of the tables' entry.
    """

    real_step_ns: int | None = None
    real_range: NsRange | None = None
    source_root: Path | None = None
    device_peaks: Peaks | None = None


@dataclass
class Measured:
    """One rank's trace with the metrics that were computed from it so far."""

    trace: Trace
    options: AnalysisOptions = field(default_factory=AnalysisOptions)
    peers: tuple[Analysis, ...] = ()
    """The other ranks of the job."""

    def __post_init__(self) -> None:
        self._memo: dict[Callable[[Trace], object], object] = {}

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
    def peaks(self) -> Peaks | None:
        """Peaks of the busiest device; None when neither user nor header says what it is."""
        if self.device is None:
            return None
        return self.options.device_peaks or peaks_of(self.trace.header, self.device.device)

    @cached_property
    def roof(self) -> Roofline:
        """Bound and efficiency of every kernel against the peaks of the busiest device."""
        return roofline(self.trace, self.peaks, costs=self.get(kernel_costs))

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
    def busy_per_step_ns(self) -> int:
        """Device work of a step: no step can be shorter while this work remains."""
        if self.device is None:
            return 0
        low, high = self.times.window
        return measure(clip(self.device.busy, low, high)) // self.steps

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
        return np.flatnonzero(self.trace.name_flags(test)[self.trace.column("name_id")])

    def extent(self, rows: IntArray) -> Intervals:
        """Union of the rows' intervals, ns."""
        if rows.size == 0:
            return empty()
        ts = self.trace.column("ts_ns")[rows]
        return union(ts, ts + self.trace.column("dur_ns")[rows])
