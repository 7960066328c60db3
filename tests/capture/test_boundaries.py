"""Which mark is the step."""

from __future__ import annotations

from kinetoscope.capture.boundaries import Key, StepFinder

OPT: Key = ("optimizer", 1)
OTHER: Key = ("optimizer", 2)
LOADER: Key = ("loader", 3)
MODULE: Key = ("module", 4)
USER: Key = ("user", 0)
BACK: Key = ("backward", 0)


def _finder(*marks: Key, rounds: int = 12) -> StepFinder:
    finder = StepFinder()
    now = 0.0
    for _ in range(rounds):
        for key in marks:
            now += 0.01
            finder.note(key, key[0], 1, now)
    return finder


def test_nothing_seen_is_no_step() -> None:
    assert StepFinder().choose() is None
    assert not StepFinder().steady()


def test_the_optimizer_outweighs_the_loader() -> None:
    assert _finder(LOADER, BACK, OPT).chosen == OPT


def test_the_users_own_mark_outweighs_all() -> None:
    assert _finder(LOADER, OPT, USER).chosen == USER


def test_gradient_accumulation_steps_with_the_optimizer() -> None:
    assert _finder(LOADER, BACK, LOADER, BACK, LOADER, BACK, OPT).chosen == OPT


def test_of_two_optimizers_the_rarer_one_is_the_step() -> None:
    assert _finder(OTHER, OTHER, OTHER, OTHER, OTHER, OPT).chosen == OPT


def test_of_two_optimizers_that_take_turns_the_first_stands() -> None:
    assert _finder(OPT, OTHER).chosen == OPT


def test_an_optimizer_that_steps_once_an_epoch_is_not_the_step() -> None:
    assert _finder(*[OPT] * 100, OTHER, rounds=4).chosen == OPT


def test_inference_steps_with_the_loader_or_the_module() -> None:
    assert _finder(MODULE, LOADER).chosen == LOADER
    assert _finder(MODULE).chosen == MODULE


def test_even_marks_are_steady() -> None:
    assert _finder(OPT).steady()


def test_batches_before_the_first_optimizer_step_are_not_the_steps() -> None:
    finder = _finder(LOADER, BACK, rounds=60)
    assert finder.chosen == LOADER
    assert not finder.steady()
    for turn in range(4):
        finder.note(OPT, "optimizer", 1, 10.0 + turn)
    assert finder.chosen == OPT


def test_a_loop_without_optimizer_is_steady_in_the_end() -> None:
    assert _finder(BACK, rounds=140).steady()
    assert _finder(MODULE, rounds=9).steady()


def test_few_marks_choose_nothing() -> None:
    assert _finder(OPT, rounds=3).chosen is None
