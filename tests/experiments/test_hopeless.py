"""When a run is given up; the clock and the compiler are pretended, times by hand."""

from __future__ import annotations

import pytest

from kinetoscope.experiments._hopeless import COMPILING_STEPS, Watch

MS = 1_000_000
S = 1000 * MS


def ended_at(
    steps_ms: list[float], *, compiled: tuple[int, ...] = (), give_up_s: float = 1e6
) -> tuple[int, Watch]:
    """The step (1, 2, ...) at which a run is given up, 0 for none; a usual step takes 10 ms."""
    now, made = 0, 0

    def clock() -> int:
        return now

    watch = Watch(10 * MS, S // 10, round(give_up_s * S), graphs=lambda: made)
    for at, step in enumerate(steps_ms, start=1):
        now += round(step * MS)
        made += at in compiled
        if watch.hopeless(at, clock):
            return at, watch
    return 0, watch


def test_three_slow_steps_after_the_first_three_are_enough() -> None:
    step, watch = ended_at([50.0] * 30)
    assert step == 6
    assert watch.periods == [50 * MS] * 3
    assert watch.settled_from == 3
    assert not watch.compiling


def test_less_than_three_times_the_usual_step_is_measured_as_ever() -> None:
    assert ended_at([29.0] * 30)[0] == 0


def test_a_measurement_is_as_long_as_any_other_at_least() -> None:
    """100 ms: of steps of 31 ms four are needed, not three."""
    assert ended_at([31.0] * 30)[0] == 7


def test_one_slow_step_among_usual_ones_says_nothing() -> None:
    assert ended_at([10.0] * 4 + [900.0] + [10.0] * 20)[0] == 0


def test_compiling_is_not_the_speed_of_the_remedy() -> None:
    """Eight graphs, one a step, then steps as usual."""
    steps = [4000.0] * 8 + [10.0] * 20
    assert ended_at(steps, compiled=tuple(range(1, 9)))[0] == 0


def test_slow_steps_count_from_the_last_that_compiled() -> None:
    step, watch = ended_at([4000.0] * 5 + [60.0] * 20, compiled=(1, 5))
    assert step == 8
    assert watch.periods == [60 * MS] * 3


def test_what_compiles_for_ever_is_slow() -> None:
    step, watch = ended_at([100.0] * 30, compiled=tuple(range(1, 31)))
    assert step == COMPILING_STEPS + 3
    assert not watch.compiling


@pytest.mark.parametrize(("give_up_s", "step"), [(1.0, 4), (6.5, 7)])
def test_what_still_compiles_when_its_time_is_over_is_given_up(give_up_s: float, step: int) -> None:
    found, watch = ended_at([1000.0] * 30, compiled=tuple(range(1, 31)), give_up_s=give_up_s)
    assert found == step
    assert watch.compiling


def test_a_first_step_that_compiles_for_long_is_waited_for() -> None:
    assert ended_at([90_000.0, 60_000.0] + [10.0] * 25, compiled=(1, 2), give_up_s=30.0)[0] == 0
