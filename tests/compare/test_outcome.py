"""Faster, slower, no difference, inconclusive: what the step times say, and how surely."""

from __future__ import annotations

import pytest

from kinetoscope.compare import CompareOptions, compare
from kinetoscope.compare.regression import judge
from kinetoscope.compare.scaling import compare_scaling, fit
from kinetoscope.errors import UsageError
from kinetoscope.result import Budget
from kinetoscope.result.profile import Recorded
from tests.compare.sides import MS, run


def test_a_clear_gain_is_faster_and_the_reverse_slower() -> None:
    there = compare(run(40), run(30)).verdict
    back = compare(run(30), run(40)).verdict
    assert (there.outcome, back.outcome) == ("faster", "slower")
    assert there.speedup is not None
    assert back.speedup is not None
    assert there.speedup.mid == pytest.approx(4 / 3, rel=1e-3)
    assert there.speedup.low * back.speedup.high == pytest.approx(1.0, rel=0.02)
    assert "25 % less time" in there.sentence


@pytest.mark.parametrize("bracket", [(1.0, 1.0), (0.7, 1.8)])
def test_both_directions_of_one_question_get_one_answer(bracket: tuple[float, float]) -> None:
    """An interval of one direction is the inverse of the other, to the last digit shown."""
    low, high = bracket
    sides = [[run(ms, low=low, high=high) for ms in side] for side in ((40, 43), (36, 35, 41))]
    there = compare(*sides).verdict.speedup
    back = compare(*sides[::-1]).verdict.speedup
    assert there is not None
    assert back is not None
    assert back.low == pytest.approx(1 / there.high, rel=1e-5)
    assert back.mid == pytest.approx(1 / there.mid, rel=1e-5)
    assert back.high == pytest.approx(1 / there.low, rel=1e-5)


def test_a_recording_with_itself_is_no_difference() -> None:
    verdict = compare(run(40), run(40)).verdict
    assert verdict.outcome == "no_difference"
    assert verdict.sentence == "No difference: both sides are the same recording."


def test_small_differences_of_single_runs_are_inconclusive() -> None:
    assert compare(run(40), run(41)).verdict.outcome == "inconclusive"


def test_repeated_runs_narrow_the_interval() -> None:
    before = [run(40 * part) for part in (0.998, 1.0, 1.002, 1.001, 0.999)]
    after = [run(40.04 * part) for part in (1.001, 0.999, 1.0, 0.998, 1.002)]
    assert compare(before, after).verdict.outcome == "no_difference"


def test_a_copy_is_no_second_run() -> None:
    one = compare(run(40), run(38))
    copied = compare([run(40), run(40)], [run(38), run(38)])
    assert copied.verdict.speedup == one.verdict.speedup
    assert "Copies of one recording are one run." in copied.notes


def test_noise_between_runs_widens_it() -> None:
    before = [run(part) for part in (40, 52, 35)]
    after = [run(part) for part in (38, 30, 47)]
    assert compare(before, after).verdict.outcome == "inconclusive"


def test_the_answer_is_deterministic() -> None:
    assert compare(run(40), run(37)) == compare(run(40), run(37))


def test_other_options_need_separate_brackets() -> None:
    stacks = Recorded(operators=True, shapes=True, stacks=True, device=True)
    wide = compare(run(40, low=0.7, high=1.8, recorded=stacks), run(36, low=0.7, high=1.4))
    assert wide.verdict.outcome == "inconclusive"
    assert [d.what for d in wide.comparable.differences] == ["options"]
    same = compare(run(40, low=0.7, high=1.8), run(32, low=0.7, high=1.8))
    assert same.verdict.outcome == "faster", "equal options err alike"


def test_a_pinned_step_time_decides() -> None:
    stacks = Recorded(operators=True, shapes=True, stacks=True, device=True, pinned=True)
    assert compare(run(40, recorded=stacks), run(30)).verdict.outcome == "faster"


def test_single_runs_of_a_processor_are_not_trusted() -> None:
    host = Recorded(operators=True, shapes=True)
    shaky = (0.8, 1.0, 1.2, 0.9, 1.1, 1.0)
    found = compare(run(40, recorded=host, jitter=shaky), run(32, recorded=host, jitter=shaky))
    assert found.verdict.outcome == "inconclusive"


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        ((40,), (8,), "inconclusive"),  # 5x: two runs of one program differed by as much
        ((8,), (40,), "inconclusive"),
        ((40,), (2,), "faster"),  # 20x: they did not
        ((40, 41), (8,), "inconclusive"),
        ((40, 41), (8, 8.1), "faster"),
        ((40, 41, 40.5), (8,), "faster"),
    ],
)
def test_one_run_of_a_processor_may_be_its_neighbours(
    before: tuple[float, ...], after: tuple[float, ...], outcome: str
) -> None:
    host = Recorded(operators=True, shapes=True)
    sides = [[run(ms, recorded=host) for ms in side] for side in (before, after)]
    found = compare(*sides)
    assert found.verdict.outcome == outcome
    warned = any("nothing in a recording tells how busy it was" in note for note in found.notes)
    assert warned == (len(before) + len(after) < 4)


@pytest.mark.parametrize(
    ("after", "status"),
    [(30, "improved"), (40, "passed"), (41, "passed"), (42, "undecided"), (50, "regressed")],
)
def test_the_check(after: float, status: str) -> None:
    assert judge(compare(run(40), run(after))).status == status


def test_a_strict_check_wants_to_be_sure() -> None:
    found = compare(run(40), run(40.5))
    assert judge(found).status == "passed"
    assert judge(found, strict=True).status == "undecided"
    assert judge(found, max_regression=0.5, strict=True).status == "passed"


def test_an_empty_side_is_an_error() -> None:
    with pytest.raises(UsageError):
        compare([], run(40))


def test_the_margin_is_the_callers() -> None:
    before = [run(40 * part) for part in (0.998, 1.0, 1.002)]
    after = [run(40.2 * part) for part in (1.001, 0.999, 1.0)]
    assert compare(before, after).verdict.outcome == "inconclusive"
    wide = CompareOptions(margin=0.1)
    assert compare(before, after, options=wide).verdict.outcome == "no_difference"


def test_scaling_finds_the_term_that_eats_it() -> None:
    weak = [[run(40 + 3 * (n - 1), ranks=n)] for n in (1, 2, 4, 8)]
    found = compare_scaling(weak, "weak").scaling
    assert found is not None
    assert found.per_rank_ns == pytest.approx(3e6, rel=0.01)
    assert found.points[-1].efficiency == pytest.approx(40 / 61, rel=0.01)
    assert [p.ranks for p in found.points] == [1, 2, 4, 8]


def test_amdahl() -> None:
    times = [round(1e9 * (0.9 / n + 0.1)) for n in (1, 2, 4, 8)]
    serial, per_rank, error = fit([1, 2, 4, 8], times, "strong")
    assert serial == pytest.approx(0.1, abs=0.005)
    assert per_rank == pytest.approx(0, abs=1e5)
    assert error is not None
    assert error < 0.01


def test_two_points_fit_nothing() -> None:
    assert fit([1, 2], [100, 60], "strong") == (None, None, None)


def test_other_numbers_of_ranks_show_the_scaling() -> None:
    found = compare(run(40, ranks=1), run(45, ranks=2))
    assert found.verdict.outcome == "not_comparable"
    assert found.scaling is not None
    assert "1.8x that people expect" in found.scaling.sentence


def test_less_than_people_expect_says_why() -> None:
    one = run(40, budget=(Budget("compute", "kernels", 40 * MS, 1.0),))
    waits = Budget("communication", "waiting for all-reduce", 60 * MS, 0.6)
    two = run(100, ranks=2, budget=(Budget("compute", "kernels", 40 * MS, 0.4), waits))
    found = compare_scaling([[one], [two]], "weak").scaling
    assert found is not None
    assert found.eaten_by == "communication"
    assert found.sentence == (
        "From 1 rank to 2 the throughput falls to 0.80x, 40 % of perfect weak scaling. 2 ranks "
        "give 0.80x, less than the 1.8x that people expect: communication takes 60.0 ms a step "
        "more than with perfect scaling (waiting for all-reduce)."
    )


def test_a_processor_of_few_runs_says_that_little_is_known() -> None:
    host = Recorded(operators=True, shapes=True)
    shaky = (0.6, 1.0, 1.5, 0.8, 1.3, 1.0)
    jobs = [[run(40 + n, ranks=n, recorded=host, jitter=shaky)] for n in (1, 2)]
    found = compare_scaling(jobs, "weak").scaling
    assert found is not None
    assert "hardly known from so few runs" in found.sentence


def test_scaling_needs_different_numbers() -> None:
    with pytest.raises(UsageError, match="different numbers of ranks"):
        compare_scaling([[run(40)], [run(40)]])


def test_a_measured_step_time_is_taken_as_it_is() -> None:
    """It is a mean over many steps; a slow step of the few recorded ones says nothing about it."""
    uneven = (1.0, 1.0, 1.0, 4.0)
    for pinned, ms in ((True, 40.0), (False, 70.0)):
        recorded = Recorded(operators=True, shapes=True, pinned=pinned)
        side = compare(run(40, jitter=uneven, recorded=recorded), run(30)).before
        assert side.step_ns == pytest.approx(ms * MS, rel=0.01)
