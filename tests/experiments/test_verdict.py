"""Intervals, guards and what becomes of a remedy; no torch needed."""

from __future__ import annotations

import math

import pytest

from kinetoscope.experiments._steps import EndedError, StepTimer, condensed, steady
from kinetoscope.experiments.remedy import Tolerance
from kinetoscope.experiments.verdict import (
    Computed,
    guards,
    interval,
    narrow_enough,
    status_of,
)
from kinetoscope.result.comparison import Ratio
from kinetoscope.result.experiment import Guard

LOSSES = [2.0, 1.9, 1.8, 1.7]
OUTPUTS = [[0.5, -1.0, 2.0]]


def runs(*means: float) -> list[list[int]]:
    return [[round(mean * 1e6 * part) for part in (0.98, 1.0, 1.02, 1.0)] for mean in means]


def computed(
    losses: list[float] = LOSSES,
    scale: float = 1.0,
    peak: int = 1 << 30,
    device: str = "NVIDIA H200",
) -> Computed:
    return Computed(losses, [[x * scale for x in row] for row in OUTPUTS], peak, device)


def test_drift_that_hits_both_sides_cancels() -> None:
    before, after = runs(40, 60, 80, 100), runs(20, 30, 40, 50)
    ratio = interval(before, after)
    assert ratio.mid == pytest.approx(2.0, rel=1e-3)
    assert ratio.low > 1.8
    assert narrow_enough(ratio, 4)


def test_two_runs_are_never_enough() -> None:
    assert not narrow_enough(Ratio(1.99, 2.0, 2.01), 2)


def test_more_work_a_step_counts() -> None:
    assert interval(runs(10, 10, 10), runs(20, 20, 20), work=4.0).mid == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("ratio", "status"),
    [
        (Ratio(1.2, 1.3, 1.4), "accepted"),
        (Ratio(0.6, 0.7, 0.8), "harmful"),
        (Ratio(0.99, 1.0, 1.01), "no_gain"),
        (Ratio(0.8, 0.9, 1.1), "no_gain"),
        (Ratio(0.9, 1.2, 1.6), "undecided"),
    ],
)
def test_what_becomes_of_it(ratio: Ratio, status: str) -> None:
    assert status_of(ratio, ())[0] == status


def test_a_broken_guard_wins_over_any_gain() -> None:
    broken = Guard("loss", "failed", "differs")
    assert status_of(Ratio(2.0, 3.0, 4.0), (broken,)) == ("changes_result", "loss: differs")


def test_more_memory_is_no_other_result() -> None:
    hungry = Guard("memory", "failed", "2 GiB at the peak")
    assert status_of(Ratio(2.0, 3.0, 4.0), (hungry,))[0] == "too_much_memory"
    assert status_of(Ratio(0.2, 0.3, 0.4), (hungry,))[0] == "harmful"
    both = (hungry, Guard("outputs", "failed", "differ"))
    assert status_of(Ratio(2.0, 3.0, 4.0), both)[0] == "changes_result"


@pytest.mark.parametrize(
    ("peak", "status"), [(1 << 30, "passed"), (1600 << 20, "passed"), (3 << 30, "failed")]
)
def test_a_compiler_may_take_memory_of_the_process(peak: int, status: str) -> None:
    before, after = (computed(peak=p, device="CPU") for p in (1 << 30, peak))
    (found,) = guards([before], after, tolerance="exact", watched=("memory",))
    assert found.status == status


def test_an_effect_beyond_doubt_needs_no_narrow_interval() -> None:
    assert narrow_enough(Ratio(2.4, 3.0, 3.75), 3)
    assert not narrow_enough(Ratio(1.04, 1.3, 1.625), 3)


@pytest.mark.parametrize(
    ("after", "tolerance", "states"),
    [
        (computed(), "exact", "passed passed passed"),
        (computed(scale=1.01), "bf16", "passed passed passed"),
        (computed(scale=1.01), "exact", "passed failed passed"),
        (computed([2.0, 1.9, 1.8, 9.0]), "bf16", "failed passed passed"),
        (computed([2.0, math.nan, 1.8, 1.7]), "statistical", "failed not_compared passed"),
        (computed([1.9, 2.0, 1.7, 1.8]), "statistical", "passed not_compared passed"),
        (computed(peak=2 << 30), "exact", "passed passed failed"),
    ],
)
def test_guards(after: Computed, tolerance: str, states: str) -> None:
    found = guards(
        [computed()],
        after,
        tolerance=tolerance,  # type: ignore[arg-type]
        watched=("loss", "outputs", "memory"),
    )
    assert " ".join(guard.status for guard in found) == states


def test_what_the_program_allows_itself_is_allowed() -> None:
    noisy = [computed(), computed(scale=1.02)]
    found = guards(noisy, computed(scale=1.05), tolerance="exact", watched=("outputs",))
    assert found[0].status == "passed"


def test_the_warm_up_is_cut_off() -> None:
    kept, cut = steady([900, 500, 300, 10, 10, 10, 10, 10, 10, 10])
    assert (kept, cut) == ([10] * 7, 3)


def test_a_slow_step_that_comes_back_is_kept() -> None:
    periods = [10, 10, 10, 10, 50, 10, 10, 10, 10, 50]
    kept, cut = steady(periods)
    assert cut == 3
    assert 50 in kept


def test_condensing_keeps_the_mean() -> None:
    periods = list(range(1, 1001))
    few = condensed(periods, 100)
    assert len(few) == 100
    assert sum(few) / 100 == pytest.approx(500.5, rel=0.01)
    assert condensed([1, 2], 100) == [1, 2]


def test_optimizer_steps_win_over_lesser_marks() -> None:
    timer = StepTimer(None, most=5, least_ns=0)
    for _ in range(10):
        timer.mark("module")
        timer.mark("loader")
        timer.mark("optimizer")
    assert timer.best() == "optimizer"
    assert len(timer.periods()) == 9


def test_enough_steps_end_the_program() -> None:
    timer = StepTimer("module", most=1000, least_ns=0)

    def program() -> None:
        for _ in range(100):
            timer.mark("module")

    with pytest.raises(EndedError):
        program()


@pytest.mark.parametrize(
    ("facts", "tolerance", "status"),
    [
        ({"dtypes": ["bfloat16"]}, "reordered", "passed"),
        ({"dtypes": ["float32"], "autocast": True}, "reordered", "passed"),
        ({"device": "cuda", "settings": {"matmul_precision": "high"}}, "reordered", "passed"),
        (
            {"device": "cuda", "convolutions": True, "settings": {"cudnn_tf32": True}},
            "reordered",
            "passed",
        ),
        ({"device": "cuda", "settings": {"cudnn_tf32": True}}, "reordered", "failed"),
        ({"device": "cpu", "settings": {"matmul_precision": "high"}}, "reordered", "failed"),
        ({"dtypes": ["float16"]}, "reordered", "passed"),
        ({"dtypes": ["float32"]}, "reordered", "failed"),
        ({"dtypes": ["bfloat16"]}, "exact", "failed"),
    ],
)
def test_sums_in_another_order_differ_by_what_half_precision_rounds(
    facts: dict[str, object], tolerance: Tolerance, status: str
) -> None:
    report = {"losses": [], "outputs": OUTPUTS, "peak_bytes": 1, "device": "cuda", "facts": facts}
    (found,) = guards(
        [Computed.of(report)], computed(scale=1.004), tolerance=tolerance, watched=("outputs",)
    )
    assert found.status == status
