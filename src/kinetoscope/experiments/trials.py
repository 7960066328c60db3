"""From the runs of two sides to a trial: the row of the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kinetoscope import units
from kinetoscope.experiments.plan import Candidate
from kinetoscope.experiments.remedy import RELATIVE, Tolerance, named
from kinetoscope.experiments.rounds import LEAST_ROUNDS, Side, label, pairs
from kinetoscope.experiments.runner import Chosen, Outcome
from kinetoscope.experiments.verdict import (
    Computed,
    beyond_doubt,
    guards,
    interval,
    memory_ratio,
    status_of,
)
from kinetoscope.result.experiment import Trial


def trial_of(base: Side, side: Side, candidate: Candidate) -> Trial:
    """Return the trial of one remedy."""
    remedy, value = candidate.remedy, candidate.value
    start = Trial(
        remedy=named(remedy, value),
        title=remedy.title,
        status="failed",
        reason=side.error,
        codes=candidate.codes,
        predicted=candidate.predicted,
        snippet=remedy.snippet(value),
    )
    return _measured(start, base, side, remedy.tolerance, remedy.must_not_worsen)


def _measured(
    start: Trial,
    base: Side,
    side: Side,
    tolerance: Tolerance,
    watched: Sequence[str],
) -> Trial:
    """Fill a trial in from the runs of both sides."""
    if side.error and not side.late:
        return _with(start, status="failed", reason=f"it fails: {side.error}")
    before, after = pairs(base, side)
    if side.late and not after:
        return _with(start, status="undecided", reason=side.error)
    if not after:
        return _with(start, status="undecided", reason="the time budget was spent before")
    computed = [Computed.of(run.report) for run in base.runs if run.report]
    last = Computed.of(side.runs[-1].report or {})
    found = guards(computed, last, tolerance=tolerance, watched=watched)
    ratio, work = interval(before, after, work=side.work), side.work
    status, reason = status_of(ratio, found)
    bound = side.ended_early and status == "harmful"
    if bound:
        steps = units.plural(len(after[-1]), "settled step")
        reason = f"at least {units.factor(1 / ratio.high)} slower: ended after {steps}"
    elif len(after) < LEAST_ROUNDS and status in ("accepted", "harmful", "no_gain"):
        if not beyond_doubt(ratio):
            status = "undecided"
        reason = f"only {units.plural(len(after), 'run')}: {reason}"
    compile_s, again_s = _longer_start(base, side)
    return _with(
        start,
        status=status,
        reason=reason,
        speedup=ratio,
        ended_early=bound,
        runs=len(after),
        before_ns=_mean(before),
        after_ns=_mean(after),
        compile_s=compile_s,
        compile_again_s=again_s,
        memory_ratio=memory_ratio(computed, last),
        throughput=round(work * 1e9 / _mean(after), 3) if work != 1.0 else None,
        guards=found,
    )


def _with(trial: Trial, **changes: Any) -> Trial:
    """Return a trial with other fields."""
    return msgspec.structs.replace(trial, **changes)


def _mean(runs: Sequence[Sequence[int]]) -> int:
    means = [sum(steps) / len(steps) for steps in runs]
    return max(round(sum(means) / len(means)), 1)


def _longer_start(base: Side, side: Side) -> tuple[float, float | None]:
    """What the time up to steady steps grew by: compilation, capture, starting of workers.

    In the first run, and in later ones, which find what the first one has compiled; seconds.
    """

    def start(run: Outcome) -> float:
        report = run.report or {}
        return float(report["first_ns"] + report["warmup_ns"]) / 1e9

    plain = min(start(run) for run in base.runs)
    first, *later = (round(max(start(run) - plain, 0.0), 2) for run in side.runs)
    return first, min(later, default=None)


def combined(base: Side, final: Side, current: Chosen) -> Trial:
    """Return the trial of several remedies together."""
    loosest: Tolerance = max((r.tolerance for r, _ in current), key=lambda t: RELATIVE[t])
    watched = [
        w for w in ("loss", "outputs", "memory") if all(w in r.must_not_worsen for r, _ in current)
    ]
    start = Trial(
        remedy=label(current),
        title="together",
        status="failed",
        reason="",
        snippet="\n".join(r.snippet(v) for r, v in current),
    )
    return _measured(start, base, final, loosest, watched)
