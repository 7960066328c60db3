"""Steps that are slow again and again."""

from __future__ import annotations

import pytest

from kinetoscope.capture.options import CaptureOptions
from kinetoscope.capture.plan import brief_steps, make_plan, typical_period
from kinetoscope.capture.rhythm import rhythm, whole


def test_an_epoch_of_four_steps() -> None:
    found = rhythm([1, 1, 81, 1, 1, 1, 81, 1, 1, 1, 81, 1])
    assert (found.slow, found.cycle, found.pause) == ((2, 6, 10), 4, 80)
    assert found.mean([1, 1, 81, 1, 1, 1, 81, 1, 1, 1, 81, 1]) == 21


def test_two_slow_steps_in_a_row_are_one_pause() -> None:
    found = rhythm(([40, 30] + [1] * 8) * 3)
    assert (found.slow, found.cycle) == ((0, 10, 20), 10)
    assert found.pause == 68


@pytest.mark.parametrize(
    "periods",
    [
        [1.0] * 20,
        [1.0, 9.0, 1.0],  # too little
        [1.0, 1.0, 80.0, 1.0, 1.0],  # one of five may be every fourth
        [1.0] * 99 + [9.0],  # a twelfth of the time, once
        [1, 9, 1, 1, 1, 1, 1, 1, 9, 1, 9, 1, 1, 1],  # not regular
        [],
    ],
)
def test_scatter_has_none(periods: list[float]) -> None:
    found = rhythm(periods)
    assert (found.slow, found.cycle) == ((), 0)


def test_the_length_of_phases_goes_by_whole_cycles() -> None:
    """One in twelve is slow: none of the last eight but the longest, which counts for little."""
    periods = ([0.001] * 11 + [0.241]) * 4
    assert typical_period(periods) == pytest.approx(0.021)


def test_windows_have_whole_cycles() -> None:
    plan = make_plan(0.1, CaptureOptions(), start=0, steady=True, cycle=3)
    assert (plan.light, plan.full) == (6, 6)  # twice the cycle, and whole ones
    plan = make_plan(0.02, CaptureOptions(), start=0, steady=True, cycle=12)
    assert (plan.light, plan.full) == (36, 12)
    plan = make_plan(0.02, CaptureOptions(), start=0, steady=True, cycle=300)
    assert (plan.light, plan.full) == (25, 10)  # no window is so long
    plan = make_plan(1.0, CaptureOptions(), start=0, steady=True, cycle=10)
    assert (plan.light, plan.full, plan.cycle) == (5, 4, 0)  # nor is the budget


def test_a_short_pause_cuts_whole_cycles_off() -> None:
    assert brief_steps(12, 0.02e9, 4) == 8  # 100 ms each: ten, of which eight are whole cycles
    assert brief_steps(12, 0.5e9, 4) == 4
    assert whole(5, 0, 200) == 5
