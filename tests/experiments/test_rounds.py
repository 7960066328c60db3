"""Who runs when; the processes are pretended, with times by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kinetoscope.experiments.registry import remedies_for
from kinetoscope.experiments.rounds import MOST_ROUNDS, Side, interleave, pairs
from kinetoscope.experiments.runner import Chosen, Outcome, Runner

MS = 1_000_000
ZERO = tuple(remedies_for(["zero-grad"]))
THREADS = tuple(remedies_for(["threads=2"]))


class Pretend(Runner):
    """Answers at once; `steps` holds the step time in ms of each run of a variant."""

    def __init__(self, steps: Mapping[Chosen, Sequence[float]], left: float = 1e9) -> None:
        super().__init__(["program.py"], left)
        self.steps = {chosen: list(times) for chosen, times in steps.items()}
        self.order: list[Chosen] = []
        self.prepared: list[tuple[Chosen, ...]] = []

    def prepare(self, upcoming: Sequence[Chosen]) -> None:
        self.prepared.append(tuple(upcoming))

    def run(self, chosen: Chosen = (), **_: object) -> Outcome:
        self.order.append(chosen)
        times = self.steps[chosen]
        step = times.pop(0) if len(times) > 1 else times[0]
        parts = (0.98, 1.0, 1.02, 1.0)
        return Outcome({"steps": [round(step * MS * part) for part in parts]}, "", 1.0)


def _run(runner: Runner, base: Side, *others: Side) -> None:
    interleave(runner, base, others, [1.0] * len(others), lambda _: None, until_s=0.0)


def test_sides_take_turns_in_alternating_order() -> None:
    runner = Pretend({(): [40], ZERO: [20]})
    _run(runner, Side(()), Side(ZERO))
    assert runner.order == [(), ZERO, ZERO, (), (), ZERO]
    assert runner.prepared[0] == ((), ZERO, ZERO, ())


def test_later_rounds_are_held_against_their_own_neighbours() -> None:
    """The machine becomes twice as slow between two calls: no remedy did that."""
    runner = Pretend({(): [40, 40, 40, 80, 80, 80], ZERO: [20], THREADS: [80]})
    base, first, second = Side(()), Side(ZERO), Side(THREADS)
    _run(runner, base, first)
    _run(runner, base, second)
    before, after = pairs(base, second)
    assert [max(run) for run in before] == [round(80 * MS * 1.02)] * 3
    assert len(after) == 3


def test_noise_is_not_measured_for_ever() -> None:
    noisy = [40.0, 90.0, 30.0, 70.0, 20.0, 95.0, 50.0, 33.0] * 4
    runner = Pretend({(): list(noisy), ZERO: list(reversed(noisy))})
    base, side = Side(()), Side(ZERO)
    _run(runner, base, side)
    _run(runner, base, side)
    assert len(side.runs) == MOST_ROUNDS


def test_nothing_begins_once_the_budget_is_spent_but_the_first_round() -> None:
    runner = Pretend({(): [40], ZERO: [20]}, left=0.0)
    side = Side(ZERO)
    interleave(runner, Side(()), [side], [1.0], lambda _: None, until_s=1.0)
    assert len(side.runs) == 1
