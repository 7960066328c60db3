"""What would the step take if ...? Gains as ranges, and the step without the profiler."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from kinetoscope.metrics.intervals import measure
from kinetoscope.metrics.overhead import LEAST, MOST
from kinetoscope.replay import Change, simulate
from kinetoscope.result import Gain, NsRange

if TYPE_CHECKING:
    from kinetoscope.analysis.core import Analysis

HOST_ERROR = 0.3
"""Eight of ten true step times differ less than this from the likely one, in its host part."""


class WhatIf:
    """Replays of one rank's steady steps, with changes and without; each base computed once."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self._replays: dict[int, float] = {}

    @cached_property
    def deflations(self) -> tuple[float, float, float]:
        """How much profiling overhead to take off: likely, slowest and fastest true step."""
        real = self.analysis.options.real_step_ns
        if real is not None:
            pinned = _solve(lambda f: simulate(self.analysis.model, deflate=f).step_ns, float(real))
            return pinned, pinned, pinned
        return 1.0, LEAST, MOST

    def _base_ns(self, deflate: float) -> float:
        key = round(deflate * 1000)
        if key not in self._replays:
            self._replays[key] = max(simulate(self.analysis.model, deflate=deflate).step_ns, 1.0)
        return self._replays[key]

    @cached_property
    def step_time(self) -> NsRange:
        """Bracket of the true step time: recorded above, without profiling overhead below."""
        recorded = self.analysis.step_ns
        if self.analysis.options.real_step_ns is not None:
            real = self.analysis.options.real_step_ns
            if self.analysis.options.real_range is not None:
                return self.analysis.options.real_range
            return NsRange(real, real, real)
        mid_f, _, low_f = self.deflations
        scale = recorded / self._base_ns(0.0)
        floor = min(self.analysis.busy_per_step_ns - self.analysis.waiting_per_step_ns, recorded)
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
        if self.analysis.peers or self.analysis.device is None:
            return 0
        inside = self.analysis.device.within(*self.analysis.times.window)
        return measure(inside.exposed_comm) // self.analysis.steps

    @cached_property
    def replay_error(self) -> float:
        """|replayed / recorded - 1| without a change: how far the model can be trusted."""
        return abs(self._base_ns(0.0) / max(self.analysis.step_ns, 1) - 1.0)

    def speedup(self, change: Change, deflate: float) -> float:
        """Step speed-up of a change when profiling cost this many times the modelled overhead."""
        after = simulate(self.analysis.model, change, deflate=deflate).step_ns
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
        mid_f, slow_f, fast_f = self.deflations

        def after(change: Change, deflate: float) -> float:
            return max(simulate(self.analysis.model, change, deflate=deflate).step_ns, 1.0)

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
        highs += [1 + most / fastest, self._at_most(base[mid_f], after(high, mid_f))]
        slack = 1.0 + max(self.replay_error - 0.05, 0.0)
        bottom = max(min(*lows, middle) / slack, 1.0)
        top = max(*highs, middle) * slack
        return Gain(round(bottom, 3), round(middle, 3), round(top, 3), basis="replay")

    def _at_most(self, base: float, after: float) -> float:
        """Speed-up when all that the profiler does not explain is in what the change leaves.

        A window can be slower than the known step by more than its events cost: the machine was
        busier, or a wait that the profiler does not touch (a disk) makes up most of the step.
        """
        real = self.analysis.options.real_step_ns
        if real is None or base <= real:
            return 1.0
        return real / max(after - (base - real), LEAST * after)


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
