"""How long a phase may take when its steps become slow; the clock is set by hand."""

from __future__ import annotations

from typing import Any

import pytest

from kinetoscope.capture import limits
from kinetoscope.capture.limits import Limit
from kinetoscope.capture.plan import Plan
from kinetoscope.capture.watcher import patience_s

PLAN = Plan(0, 100, 50, 20, 1, 100, 100, period_s=0.01)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


class Store:
    """An agreement of a rank, through a dictionary."""

    def __init__(self, said: dict[str, Any], *, possible: bool = True, leads: bool = True) -> None:
        self.said, self.possible, self.leads = said, possible, leads

    def publish(self, said: dict[str, Any], about: str) -> None:
        self.said[about] = said

    def ask(self, about: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.said.get(about)
        return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(limits, "time", made)
    return made


def _steps(clock: Clock, limit: Limit, seconds: float) -> None:
    """Steps of a second each."""
    for _ in range(int(seconds)):
        limit.late(1)
        clock.now += 1.0
    clock.now += 0.05


def _limit(store: Store) -> Limit:
    made = Limit(store)  # type: ignore[arg-type]
    made.begin("light", 4, 51, PLAN.longest_s("light", 60.0))
    return made


def test_a_phase_may_take_a_share_of_the_budget_or_twice_what_was_planned() -> None:
    assert PLAN.longest_s("baseline", 60.0) == 15.0
    assert PLAN.longest_s("light", 60.0) == 9.0
    long = Plan(0, 2, 1, 1, 0, 0, period_s=30.0)
    assert long.longest_s("baseline", 60.0) == 120.0
    assert long.longest_s("full", 60.0) == 2 * 3.5 * 30.0


def test_all_phases_together_stay_near_the_budget() -> None:
    phases = ("baseline", "light", "full", "samples", "second")
    assert sum(PLAN.longest_s(phase, 60.0) for phase in phases) <= 60.0


def test_slow_steps_end_a_phase(clock: Clock) -> None:
    limit = _limit(Store({}, possible=False))
    _steps(clock, limit, 8.0)
    assert not limit.late(5)
    _steps(clock, limit, 1.0)
    assert limit.late(6)


def test_a_window_that_has_not_begun_begins_and_gets_its_time(clock: Clock) -> None:
    limit = _limit(Store({}, possible=False))
    _steps(clock, limit, 9.0)
    assert limit.late(6)
    limit.extend(3)
    assert limit.until == 48
    assert [limit.done(index) for index in (1, 2, 7)] == [0, 1, 6]
    assert not limit.late(7)
    _steps(clock, limit, 9.0)
    assert limit.late(8)


def test_one_pause_does_not_end_a_phase(clock: Clock) -> None:
    limit = _limit(Store({}, possible=False))
    clock.now += 25.0
    assert not limit.late(5)
    clock.now += 8.0
    assert not limit.late(6)
    clock.now += 1.1
    assert limit.late(7)


def test_ranks_end_a_phase_at_the_same_step(clock: Clock) -> None:
    said: dict[str, Any] = {}
    lead, other = _limit(Store(said)), _limit(Store(said, leads=False))
    for limit in (lead, other):
        limit.late(9)
    clock.now += 4.0
    for limit in (lead, other):
        limit.late(9)
    clock.now += 4.0
    for limit in (lead, other):
        limit.late(9)
    clock.now += 4.0
    assert not other.late(10)  # nobody said anything so far
    assert not lead.late(10)
    assert [lead.late(i) for i in range(11, 18)] == [other.late(i) for i in range(11, 18)]
    assert not lead.late(15)
    assert lead.late(16)


def test_patience_with_a_step_that_does_not_come() -> None:
    assert patience_s([0.01, 0.02], 60.0) == 6.0
    assert patience_s([0.5], 60.0) == 15.0  # thirty steps
    assert patience_s([10.0], 60.0) == 60.0  # the budget
    assert patience_s([40.0], 60.0) == 200.0  # five steps
    assert patience_s([], 60.0) == 6.0
