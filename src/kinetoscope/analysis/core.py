"""All that a rule can see of one rank: its metrics, the other ranks, what-ifs, places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from kinetoscope.analysis.gains import ReplayedGain
from kinetoscope.analysis.locate import Locator
from kinetoscope.analysis.measured import Measured
from kinetoscope.analysis.whatif import WhatIf
from kinetoscope.metrics.comm import Collectives, collectives
from kinetoscope.metrics.ranks import Matches, match_ranks
from kinetoscope.replay import Change, Model, build_model
from kinetoscope.result import Location, NsRange
from kinetoscope.trace.trace import IntArray

T = TypeVar("T")


@dataclass
class Analysis(Measured):
    """One rank's trace with everything that was computed from it so far."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._found: dict[Callable[[Analysis], object], object] = {}

    def once(self, question: Callable[[Analysis], T]) -> T:
        """What a function says of this analysis (and its peers), computed once."""
        if question not in self._found:
            self._found[question] = question(self)
        return self._found[question]  # type: ignore[return-value]

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
        return self.ranks[0].once(_matched)

    @cached_property
    def waiting_per_step_ns(self) -> int:
        """Part of the device's work that is waiting for other ranks, as far as known."""
        if not self.peers:
            return 0
        from kinetoscope.analysis.job import waits

        return waits(self).waiting_ns // self.steps

    # ---- what-ifs ------------------------------------------------------------------------

    @cached_property
    def own_model(self) -> Model:
        """The recording as host calls and device events."""
        return build_model(self.trace, self.times)

    @cached_property
    def model(self) -> Model:
        """The same; in a job it knows how much of its waiting for other ranks is profiling."""
        from kinetoscope.analysis.job import with_waiting

        return with_waiting(self) if self.peers else self.own_model

    @cached_property
    def what_if(self) -> WhatIf:
        """Replays of the model."""
        return WhatIf(self)

    @property
    def deflations(self) -> tuple[float, float, float]:
        """How much profiling overhead to take off: likely, slowest and fastest true step."""
        return self.what_if.deflations

    @property
    def step_time(self) -> NsRange:
        """Bracket of the true step time."""
        return self.what_if.step_time

    @property
    def replay_error(self) -> float:
        """|replayed / recorded - 1| without a change: how far the model can be trusted."""
        return self.what_if.replay_error

    def speedup(self, change: Change, deflate: float) -> float:
        """Step speed-up of a change at one amount of profiling overhead."""
        return self.what_if.speedup(change, deflate)

    def gain(
        self, low: Change, mid: Change | None = None, high: Change | None = None
    ) -> ReplayedGain:
        """Step speed-up of a change, cautious, likely and at best, as a range."""
        return self.what_if.gain(low, mid, high)

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
        inside: IntArray | None = None,
    ) -> tuple[Location, ...]:
        """Places in the user's program that the events come from, heaviest first.

        Args:
            rows: event-table rows, host or device.
            weights: what each row weighs; its duration when not given.
            calls: names of the calls that may have made them (`item`, `cpu`), to find the
                exact line when the source is at hand.
            top: how many places at most.
            inside: nodes of user frames around the rows, when not the innermost ones are wanted.
        """
        if weights is None:
            weights = self.trace.column("dur_ns")[rows]
        return self.locator.locations(rows, weights, calls=calls, top=top, inside=inside)

    def host_event_during(self, low: int, high: int) -> int:
        """Row of the innermost host event that fills most of [low, high); -1: none.

        Among the launching threads and the one with the steps.
        """
        activity = self.activity
        threads = np.union1d(self.model.host_threads, [self.trace.steps.thread])
        length = np.minimum(activity.end, high) - np.maximum(activity.start, low)
        length = np.where(np.isin(activity.thread, threads), length, 0)
        return int(activity.row[int(np.argmax(length))]) if length.max(initial=0) > 0 else -1


def _matched(analysis: Analysis) -> Matches:
    return match_ranks(
        [a.comm for a in analysis.ranks], [a.trace.header.base_time_ns for a in analysis.ranks]
    )
