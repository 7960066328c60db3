"""Who runs when; the processes are pretended, with times by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kinetoscope.experiments.plan import Candidate
from kinetoscope.experiments.registry import remedies_for
from kinetoscope.experiments.rounds import MOST_ROUNDS, Side, interleave, pairs
from kinetoscope.experiments.runner import Chosen, Outcome, Runner
from kinetoscope.experiments.trials import trial_of
from kinetoscope.result.experiment import Trial

MS = 1_000_000
ZERO = tuple(remedies_for(["zero-grad"]))
THREADS = tuple(remedies_for(["threads=2"]))
REPORT = {
    "losses": [],
    "outputs": [],
    "peak_bytes": 0,
    "device": "CPU",
    "first_ns": 0,
    "warmup_ns": 0,
}


class Pretend(Runner):
    """Answers at once; `steps` holds the step time in ms of each run of a variant.

    Like a real process, it ends early where its steps take three times the usual one; `late` names
    the variants that do not end.
    """

    def __init__(
        self,
        steps: Mapping[Chosen, Sequence[float]],
        left: float = 1e9,
        late: Sequence[Chosen] = (),
    ) -> None:
        super().__init__(["program.py"], left)
        self.steps = {chosen: list(times) for chosen, times in steps.items()}
        self.late = late
        self.order: list[Chosen] = []
        self.prepared: list[tuple[Chosen, ...]] = []

    def prepare(self, upcoming: Sequence[Chosen]) -> None:
        self.prepared.append(tuple(upcoming))

    def run(self, chosen: Chosen = (), *, usual_ns: int = 0, **_: object) -> Outcome:
        self.order.append(chosen)
        if chosen in self.late:
            return Outcome(None, "a run did not end within 60 s", 60.0, late=True)
        times = self.steps[chosen]
        step = times.pop(0) if len(times) > 1 else times[0]
        parts = (0.98, 1.0, 1.02, 1.0)
        early = 0 < 3 * usual_ns <= step * MS
        steps = [round(step * MS * part) for part in parts]
        return Outcome({**REPORT, "steps": steps, "ended_early": early}, "", 1.0)


def _run(runner: Runner, base: Side, *others: Side) -> None:
    interleave(runner, base, others, lambda _: None, until_s=0.0)


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
    interleave(runner, Side(()), [side], lambda _: None, until_s=1.0)
    assert len(side.runs) == 1


def _trial(base: Side, side: Side) -> Trial:
    remedy, value = side.chosen[0]
    return trial_of(base, side, Candidate(remedy, value))


def test_a_hopeless_remedy_runs_once_where_no_neighbour_explains_it() -> None:
    runner = Pretend({(): [40], ZERO: [800], THREADS: [40]})
    slow = Side(ZERO)
    _run(runner, Side(()), slow, Side(THREADS))
    assert runner.order.count(ZERO) == 1
    assert runner.order.count(THREADS) >= 3


def test_a_hopeless_remedy_runs_twice() -> None:
    runner = Pretend({(): [40], ZERO: [200], THREADS: [40]})
    base, slow, other = Side(()), Side(ZERO), Side(THREADS)
    _run(runner, base, slow, other)
    assert runner.order.count(ZERO) == 2
    assert runner.order.count(THREADS) >= 3
    trial = _trial(base, slow)
    assert trial.status == "harmful"
    assert trial.ended_early
    assert trial.speedup is not None
    # 40 ms to 200 ms is 5x; the bound is what two runs leave of it.
    assert 4.0 < 1 / trial.speedup.high < 5.0
    assert trial.reason.startswith("at least 4.")
    assert trial.reason.endswith("x slower: ended after 4 settled steps")


def test_more_work_in_a_step_is_not_slower() -> None:
    runner = Pretend({(): [40], ZERO: [150]})
    side = Side(ZERO, work=4.0)
    _run(runner, Side(()), side)
    assert not side.ended_early
    assert len(side.runs) >= 3


def test_what_took_too_long_is_undecided_and_not_tried_again() -> None:
    runner = Pretend({(): [40], ZERO: [40]}, late=[ZERO])
    base, side = Side(()), Side(ZERO)
    _run(runner, base, side)
    assert runner.order.count(ZERO) == 1
    trial = _trial(base, side)
    assert (trial.status, trial.reason) == ("undecided", "a run did not end within 60 s")


def test_a_remedy_may_take_half_of_what_is_left() -> None:
    with Runner(["program.py"], 1000.0) as runner:
        assert 495 < runner._limit_s(ZERO) <= 500
        assert 1050 < runner._limit_s(()) <= 1060
        runner.budget_s = 10.0
        assert runner._limit_s(ZERO) == 60.0
