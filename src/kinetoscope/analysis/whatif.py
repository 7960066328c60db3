"""What would the step take if ...? Gains as ranges, and the step without the profiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from kinetoscope.analysis.gains import HIGH, LOW, MID, Changes, ReplayedGain, Triple
from kinetoscope.metrics.intervals import measure
from kinetoscope.metrics.overhead import LEAST, MOST
from kinetoscope.replay import (
    Change,
    JobModel,
    Timeline,
    combined,
    simulate,
    simulate_job,
    timeline,
    timeline_job,
)
from kinetoscope.result import Gain, NsRange

if TYPE_CHECKING:
    from kinetoscope.analysis.core import Analysis

TRUSTED_ERROR = 0.05
"""A replay without a change that is off by more widens the range of every gain by the rest."""

_FILLED = 1.02
"""A step at most this many times as long as the device's work is one that the device fills."""

HOST_ERROR = 0.3
"""Eight of ten true step times differ less than this from the likely one, in its host part."""


class WhatIf:
    """Replays of one rank's steady steps, with changes and without; each base computed once."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self._replays: dict[int, float] = {}
        self._job_replays: dict[float, float] = {}

    @cached_property
    def deflations(self) -> tuple[float, float, float]:
        """How much profiling overhead to take off: likely, slowest and fastest true step."""
        real = self.analysis.options.real_step_ns
        if real is not None:
            pinned = _solve(lambda f: simulate(self.analysis.model, deflate=f).step_ns, float(real))
            return pinned, pinned, pinned
        return 1.0, LEAST, MOST

    def base_ns(self, deflate: float) -> float:
        """Step time of this rank without a change, ns; computed once."""
        key = round(deflate * 1000)
        if key not in self._replays:
            self._replays[key] = max(simulate(self.analysis.model, deflate=deflate).step_ns, 1.0)
        return self._replays[key]

    @cached_property
    def step_time(self) -> NsRange:
        """Bracket of the true step time: recorded above, without profiling overhead below.

        Where few steps were recorded and they vary, the fastest may be the usual ones: what made
        the others slow (another process, a cold cache) need not come back.
        """
        found = self.unprofiled
        if self.analysis.options.real_step_ns is not None:
            return found
        low = int(found.low * self.analysis.times.low_ratio)
        return NsRange(max(low, min(self._floor_ns, found.low)), found.mid, found.high)

    @cached_property
    def unprofiled(self) -> NsRange:
        """What profiling alone may have added to the typical step."""
        recorded = self.analysis.step_ns
        if self.analysis.options.real_step_ns is not None:
            real = self.analysis.options.real_step_ns
            if self.analysis.options.real_range is not None:
                return self.analysis.options.real_range
            return NsRange(real, real, real)
        mid = self._at_deflation(self.deflations[0])
        low = max(self._fastest_ns - self.lone_waiting_ns, 1)
        return NsRange(low, mid, recorded)

    def _at_deflation(self, deflate: float) -> int:
        """Step time without so much overhead, at least the device's work, at most as recorded."""
        recorded = self.analysis.step_ns
        found = int(self.base_ns(deflate) * recorded / self.base_ns(0.0))
        return min(max(found, self._floor_ns), recorded)

    @property
    def _fastest_ns(self) -> int:
        """Step time when profiling cost as much as it ever does."""
        floor, mid = self._floor_ns, self._at_deflation(self.deflations[0])
        fast = int(floor + (1 - HOST_ERROR) * (mid - floor))
        return min(self._at_deflation(self.deflations[2]), fast)

    @property
    def device_may_lead(self) -> bool:
        """Does the device fill the fastest step that the recording allows, not the likely one?

        Then what looks like a slow host may all be profiling.
        """
        if self.analysis.options.real_step_ns is not None or self.analysis.device is None:
            return False
        least = _FILLED * self._floor_ns
        return self._fastest_ns <= least < self._at_deflation(self.deflations[0])

    @property
    def _floor_ns(self) -> int:
        """The device's work of a step; profiling does not stretch it."""
        work = self.analysis.busy_per_step_ns - self.analysis.waiting_per_step_ns
        return min(work, self.analysis.step_ns)

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
        return abs(self.base_ns(0.0) / max(self.analysis.step_ns, 1) - 1.0)

    def speedup(self, change: Change, deflate: float) -> float:
        """Step speed-up of a change when profiling cost this many times the modelled overhead."""
        after = simulate(self.analysis.model, change, deflate=deflate).step_ns
        return self.base_ns(deflate) / max(after, 1.0)

    def gain(
        self, low: Change, mid: Change | None = None, high: Change | None = None
    ) -> ReplayedGain:
        """Step speed-up of a change, as a range.

        Args:
            low: the change at its most cautious.
            mid: at its most likely; `low` when not given.
            high: at its best; `mid` when not given.

        The range also covers how much of the recorded host time was profiling. There is no gain in
        time where the device's timeline is missing: nobody knows what waits for what.
        """
        mid = mid or low
        own = {self.analysis.place: (low, mid, high or mid)}
        return self._range(own, together=False)

    def gain_of(self, changes: Changes) -> ReplayedGain:
        """The same for changes of any ranks (by position), with all ranks replayed together.

        Where the recordings do not allow that, this rank is replayed with its own changes.
        """
        return self._range(changes, together=self.job is not None)

    def _range(self, changes: Changes, *, together: bool) -> ReplayedGain:
        if self.analysis.coverage.device_missing:
            return ReplayedGain(1, 1, 1, basis="none", changes=changes, replayed=(1, 1, 1))
        replays = _Replays(self, changes, together=together)
        mid_f, slow_f, fast_f = self.deflations
        base, after = replays.base, replays.after
        middle = max(base(mid_f) / after(MID, mid_f), 1.0)
        # Profiling may have inflated what the fix removes and what it leaves to a different
        # degree: the likely part that goes is also set against the slowest remainder, the largest
        # one against the fastest. What a wait kept apart may overlap by more than the wait took:
        # there the likely step is set against the fastest remainder as well.
        slowest, fastest = after(LOW, slow_f), after(HIGH, fast_f)
        likely = max(base(mid_f) - after(LOW, mid_f), 0.0)
        most = max(base(slow_f) - after(HIGH, slow_f), 0.0)
        lows = [base(slow_f) / slowest, 1 + likely / slowest, base(fast_f) / after(LOW, fast_f)]
        highs = [base(fast_f) / fastest, base(slow_f) / after(HIGH, slow_f)]
        highs += [1 + most / fastest, self._at_most(base(mid_f), replays)]
        if any(triple[HIGH].unblock is not None for triple in changes.values()):
            highs.append(base(mid_f) / fastest)
        bottom = max(min(*lows, middle) / replays.slack, 1.0)
        top = max(*highs, middle) * replays.slack
        low, mid, high = round(bottom, 3), round(middle, 3), round(top, 3)
        return ReplayedGain(
            low,
            mid,
            high,
            basis="replay",
            changes=changes,
            replayed=(low, mid, high),
            together=together,
        )

    def _at_most(self, base: float, replays: _Replays) -> float:
        """Speed-up when all that the profiler does not explain is in what the change leaves.

        A window can be slower than the known step by more than its events cost: the machine was
        busier, or a wait that the profiler does not touch (a disk) makes up most of the step.
        """
        real = self.analysis.options.real_step_ns
        if real is None or base <= real:
            return 1.0
        after = replays.after(HIGH, self.deflations[0])
        return real / max(after - (base - real), LEAST * after)

    def together(self, gains: Sequence[ReplayedGain]) -> Gain:
        """Step speed-up of several fixes at once; never less than the best of them alone.

        What a rule knows beyond the replay (a range that it widened) widens this range as well.
        """
        places = sorted({place for gain in gains for place in gain.changes})
        changes = {p: _combined([g.changes[p] for g in gains if p in g.changes]) for p in places}
        found = self._range(changes, together=any(g.together for g in gains))
        down = min(g.low / g.replayed[0] for g in gains)
        up = max(g.high / g.replayed[2] for g in gains)
        low = max(found.low * min(down, 1.0), *(g.low for g in gains))
        mid = max(found.mid, low, *(g.mid for g in gains))
        high = max(found.high * max(up, 1.0), mid, *(g.high for g in gains))
        return Gain(round(low, 3), round(mid, 3), round(high, 3), basis="replay")

    def aftermath(self, gain: ReplayedGain) -> tuple[Change, Timeline]:
        """The likely change of this rank, and the replay with it, of all ranks if they were."""
        chosen = {place: triple[MID] for place, triple in gain.changes.items()}
        own = chosen.get(self.analysis.place, Change())
        deflate = self.deflations[0]
        if gain.together and self.job is not None:
            return own, timeline_job(self.job, self._in_job(chosen), deflate=deflate)
        return own, timeline(self.analysis.model, own, deflate=deflate)

    def job_ns(self, changes: Mapping[int, Change], deflate: float) -> float:
        """Step time of all ranks replayed together with the changes of some, ns.

        Changes of ranks that are not replayed do nothing. Only where `job` is not None.
        """
        if self.job is None:
            raise ValueError("the ranks cannot be replayed together")
        return simulate_job(self.job, self._in_job(changes), deflate=deflate)

    def _in_job(self, changes: Mapping[int, Change]) -> dict[int, Change]:
        from kinetoscope.analysis.job import replayed_places

        places = replayed_places(self.analysis)
        return {places.index(p): c for p, c in changes.items() if p in places}

    def job_base_ns(self, deflate: float) -> float:
        """The same without a change, computed once."""
        if deflate not in self._job_replays:
            self._job_replays[deflate] = max(self.job_ns({}, deflate), 1.0)
        return self._job_replays[deflate]

    @cached_property
    def job(self) -> JobModel | None:
        """The ranks' models, joined at their collectives."""
        from kinetoscope.analysis.job import joined

        return joined(self.analysis)


class _Replays:
    """Step times with and without a change: of one rank, or of all ranks together."""

    def __init__(self, what_if: WhatIf, changes: Changes, *, together: bool) -> None:
        self.what_if, self.changes, self.together = what_if, changes, together
        self._known: dict[tuple[tuple[int, ...], float], float] = {}

    def base(self, deflate: float) -> float:
        """Without the change, ns."""
        return self.what_if.job_base_ns(deflate) if self.together else self.what_if.base_ns(deflate)

    def after(self, which: int, deflate: float) -> float:
        """With the cautious, likely or best change, ns."""
        chosen = {place: triple[which] for place, triple in self.changes.items()}
        key = tuple(id(change) for change in chosen.values()), deflate
        if key not in self._known:
            self._known[key] = max(self._replay(chosen, deflate), 1.0)
        return self._known[key]

    def _replay(self, chosen: Mapping[int, Change], deflate: float) -> float:
        if self.together:
            return self.what_if.job_ns(chosen, deflate)
        analysis = self.what_if.analysis
        own = chosen.get(analysis.place, Change())
        return simulate(analysis.model, own, deflate=deflate).step_ns

    @property
    def slack(self) -> float:
        """By how much the replay's own error widens a range."""
        recorded = max(self.what_if.analysis.step_ns, 1)
        error = abs(self.base(0.0) / recorded - 1.0)
        return 1.0 + max(error - TRUSTED_ERROR, 0.0)


def _combined(triples: Sequence[Triple]) -> Triple:
    low, mid, high = (combined(t[which] for t in triples) for which in (LOW, MID, HIGH))
    return low, mid, high


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
