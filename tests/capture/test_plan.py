"""When steps are steady, and how many steps each phase gets."""

from __future__ import annotations

import pytest

from kinetoscope.capture.options import CaptureOptions
from kinetoscope.capture.plan import (
    Plan,
    brief_steps,
    enough,
    fitting_steps,
    is_steady,
    make_plan,
    spread,
    typical_period,
)


def test_equal_periods_are_steady() -> None:
    assert is_steady([0.01] * 6)


def test_a_warm_up_is_not_steady() -> None:
    assert not is_steady([1.0, 0.5, 0.3, 0.2, 0.15, 0.12])


def test_few_periods_say_nothing() -> None:
    assert not is_steady([0.01] * 5)
    assert not is_steady([])


def test_long_steps_are_steady_after_three() -> None:
    assert is_steady([20.0, 2.0, 2.05, 1.98])


def test_short_steps_that_scatter_are_steady_once_their_median_stands_still() -> None:
    noisy = [0.001, 0.002, 0.0015, 0.003] * 12
    assert not is_steady(noisy[:8])
    assert is_steady(noisy)


def test_one_slow_step_does_not_count() -> None:
    assert spread([1.0, 1.0, 1.0, 9.0, 1.0]) == 0.0
    assert is_steady([0.01, 0.01, 0.01, 0.5, 0.01, 0.01])


def test_a_slow_step_in_four_counts_for_the_length_of_the_phases() -> None:
    assert typical_period([0.001, 0.001, 0.001, 0.078] * 4) == pytest.approx(0.02025)
    assert typical_period([0.004, 0.001, 0.001, 0.006, 0.002, 0.001]) == pytest.approx(0.0018)


def test_the_first_batch_does_not() -> None:
    assert typical_period([4.0, 0.001, 0.003]) == pytest.approx(0.002)
    assert typical_period([0.5]) == 0.5


@pytest.mark.parametrize("period", [5e-5, 1e-3, 0.05, 1.0, 10.0])
@pytest.mark.parametrize("budget", [5.0, 60.0, 600.0])
def test_a_plan_keeps_the_budget(period: float, budget: float) -> None:
    plan = make_plan(period, CaptureOptions(budget_s=budget), start=0, steady=True)
    plain = plan.baseline + plan.samples + plan.second
    steps = plain + 1.6 * plan.light + 3.5 * plan.full + 8 * plan.lines
    assert steps * period <= budget or plan == Plan(0, 2, 1, 1, 0, 0, period_s=period)


def test_the_baseline_is_about_four_seconds() -> None:
    plan = make_plan(0.01, CaptureOptions(), start=7, steady=True)
    assert plan.start == 7
    assert (plan.baseline, plan.second) == (200, 200)
    before = plan.timed_before()
    assert (before.baseline, before.second) == (400, 0)
    assert plan.full == 20
    few = make_plan(1.0, CaptureOptions(), start=0, steady=True)
    assert (few.baseline, few.second) == (3, 2)


def test_batches_that_workers_prepared_are_used_up_before_a_window() -> None:
    assert make_plan(0.01, CaptureOptions(), start=0, steady=True, ahead=16).warm_up == 17
    assert make_plan(1.0, CaptureOptions(), start=0, steady=True, ahead=100).warm_up == 5


def test_the_size_budget_shortens_the_full_window() -> None:
    assert fitting_steps(10, 1e6, 500_000_000) == 10
    assert fitting_steps(10, 2e7, 500_000_000) == 5
    assert fitting_steps(10, 1e9, 500_000_000) == 1


@pytest.mark.parametrize(
    ("light_pause_s", "steps"),
    [
        (0.001, 20),  # 5 ms each: all of them
        (0.02, 10),  # 100 ms each: ten make a second
        (0.5, 3),  # 2.5 s each: no fewer than three
    ],
)
def test_the_program_stands_still_for_a_second_at_most(light_pause_s: float, steps: int) -> None:
    assert brief_steps(20, light_pause_s * 1e9) == steps


def test_few_steps_stay_few() -> None:
    assert brief_steps(1, 1e9) == 1


def test_a_window_that_is_much_work_to_write_ends_early() -> None:
    assert not enough(10, 0.3e9)
    assert enough(3, 0.5e9)
    assert not enough(2, 0.5e9)  # three show whether a thing repeats
    assert enough(1, 2e9)
    assert not enough(0, 2e9)
    assert not enough(5, 0.5e9, 6)  # nor is a cycle cut


def test_steps_that_are_far_quicker_than_planned_get_a_new_plan() -> None:
    plan = make_plan(5.0, CaptureOptions(budget_s=60.0), start=3, steady=False)
    assert plan.far_too_slow(0.02)  # compiled meanwhile
    assert not plan.far_too_slow(4.0)
    assert not plan.far_too_slow(0.0)  # nothing was timed
