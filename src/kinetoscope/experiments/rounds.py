"""Interleaved rounds: the unchanged program and its variants take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from kinetoscope.experiments.remedy import named
from kinetoscope.experiments.runner import Chosen, Outcome, Runner
from kinetoscope.experiments.verdict import beyond_doubt, interval, narrow_enough

Tell = Callable[[str], None]

MOST_ROUNDS = 8
LEAST_ROUNDS = 3
HOPELESS = 0.7
"""A variant that is certainly this slow needs no narrower interval."""
ONE_IS_ENOUGH = 0.1
"""A single run is certain only where it is this slow: on a busy machine one run of a program takes
several times as long as the next."""


@dataclass
class Side:
    """The runs of one variant, in the order of the rounds.

    Attributes:
        chosen: its remedies.
        work: how many times the work of a plain step one step does.
        runs: good runs; `rounds` says in which round each was made.
        error: why it fell out.
        late: a run took too much of the time that was left.
    """

    chosen: Chosen
    work: float = 1.0
    runs: list[Outcome] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    error: str = ""
    late: bool = False
    done: bool = False

    @property
    def ended_early(self) -> bool:
        """Whether its last run was ended after a few hopelessly slow steps."""
        return bool(self.runs) and self.runs[-1].ended_early

    @property
    def mean_ns(self) -> int:
        """Mean step time of its runs; 0 when there is none."""
        means = [fmean(run.steps) for run in self.runs]
        return round(fmean(means)) if means else 0


def interleave(
    runner: Runner,
    base: Side,
    others: Sequence[Side],
    tell: Tell,
    *,
    until_s: float,
) -> None:
    """Run base and others in turns until each other side is decided or the time is spent.

    Every round runs the base once and each undecided side once, in alternating order: what drifts
    slowly hits all sides alike. Called again, it goes on with new rounds.
    """
    first = 1 + max((turn for side in (base, *others) for turn in side.rounds), default=-1)
    for turn in range(first, first + MOST_ROUNDS):
        todo = [side for side in others if not side.done and len(side.runs) < MOST_ROUNDS]
        if not todo:
            return
        order = [base, *todo] if turn % 2 == 0 else [*todo, base]
        # The rounds that are certain to come may be prepared as well.
        coming = [*order, *(order[::-1] if turn + 1 < first + LEAST_ROUNDS else [])]
        for at, side in enumerate(order):
            if runner.left_s < until_s and turn > first:
                return
            tell(f"round {turn + 1}, run {at + 1} of {len(order)}: {label(side.chosen)}")
            runner.prepare([later.chosen for later in coming[at:] if not later.done])
            _run_once(runner, base, side, turn)
        for side in others:
            side.done = side.done or _decided(base, side)


def _run_once(runner: Runner, base: Side, side: Side, turn: int) -> None:
    usual_ns = 0 if side is base else round(base.mean_ns * side.work)
    outcome = runner.run(side.chosen, usual_ns=usual_ns)
    if outcome.error:
        side.error, side.late, side.done = outcome.error, outcome.late, True
        return
    side.runs.append(outcome)
    side.rounds.append(turn)


def _decided(base: Side, side: Side) -> bool:
    before, after = pairs(base, side)
    if not after or (len(after) < LEAST_ROUNDS and not side.ended_early):
        return False
    ratio = interval(before, after, work=side.work)
    if side.ended_early and beyond_doubt(ratio):
        return len(after) > 1 or ratio.high <= ONE_IS_ENOUGH
    if len(after) < LEAST_ROUNDS:
        return False
    return narrow_enough(ratio, len(after)) or ratio.high < HOPELESS


def pairs(base: Side, side: Side) -> tuple[list[list[int]], list[list[int]]]:
    """Step times of the rounds in which both sides ran."""
    both = [turn for turn in side.rounds if turn in base.rounds]
    return (
        [base.runs[base.rounds.index(turn)].steps for turn in both],
        [side.runs[side.rounds.index(turn)].steps for turn in both],
    )


def label(chosen: Chosen) -> str:
    """Return the names of what is installed."""
    return " + ".join(named(r, v) for r, v in chosen) or "unchanged"
