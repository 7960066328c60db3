"""The experiment: one change at a time, interleaved; then the accepted ones together, greedily."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import kinetoscope
from kinetoscope.errors import InputError
from kinetoscope.experiments.plan import Candidate, Plan, plan
from kinetoscope.experiments.remedies.threads import KNEE
from kinetoscope.experiments.remedy import Remedy
from kinetoscope.experiments.rounds import LEAST_ROUNDS, Side, Tell, interleave, pairs
from kinetoscope.experiments.runner import Chosen, ProgramError, Runner, facts_of
from kinetoscope.experiments.sentences import sentence_of
from kinetoscope.experiments.trials import combined, trial_of
from kinetoscope.experiments.verdict import interval, status_of
from kinetoscope.result import Diagnosis
from kinetoscope.result.experiment import EXPERIMENT_VERSION, Experiment, Trial


@dataclass(frozen=True)
class TuneOptions:
    """What a caller may set.

    Attributes:
        budget_s: time for all runs.
        chosen: remedies to try; all that apply when empty.
        skip: ids to leave out.
        steps: most steps of a run.
        seconds: time that a run measures.
        processes: ranks, started by torchrun.
        diagnosis: of an earlier recording; one is made when not given.
        together: also measure the accepted remedies together.
        recording: where to keep the recording that the diagnosis is made of.
    """

    budget_s: float = 300.0
    chosen: tuple[tuple[Remedy, str], ...] = ()
    skip: tuple[str, ...] = ()
    steps: int = 200
    seconds: float = 1.0
    processes: int = 1
    diagnosis: Diagnosis | None = None
    together: bool = True
    recording: Path | None = None


def tune(program: Sequence[str], options: TuneOptions, tell: Tell = lambda _: None) -> Experiment:
    """Measure remedies on a program.

    Raises:
        ProgramError: the unchanged program fails, or makes no steps that can be timed.
    """
    runner = Runner(
        program,
        options.budget_s,
        steps=options.steps,
        seconds=options.seconds,
        processes=options.processes,
    )
    with runner:
        return _experiment(runner, options, tell)


def _experiment(runner: Runner, options: TuneOptions, tell: Tell) -> Experiment:
    program = runner.program
    tell("running the program as it is")
    first = runner.run()
    if first.report is None or first.error:
        raise ProgramError(
            f"{program[0]} cannot be measured: {first.error}",
            hint="Run it by hand; it must make at least ten steps (of an optimizer, a DataLoader "
            "or a module).",
        )
    runner.mark = str(first.report["mark"])
    diagnosis = options.diagnosis or _diagnosed(runner, options.recording, tell)
    todo = plan(facts_of(first.report), diagnosis, chosen=options.chosen, skip=options.skip)
    trials = _one_at_a_time(runner, todo, options, tell)
    combination = _together(runner, trials, tell) if options.together else None
    return _document(program, runner, first.report, [t for t, _ in trials], combination, todo)


def _diagnosed(runner: Runner, keep: Path | None, tell: Tell) -> Diagnosis | None:
    """Record one run and diagnose it; None when that does not work."""
    from kinetoscope.engine import diagnose

    tell("recording the program for a diagnosis")
    with tempfile.TemporaryDirectory(prefix="kinetoscope-") as folder:
        runner.run(save_traces=Path(folder))
        traces = sorted(Path(folder).iterdir())
        if not traces:
            return None
        if keep is not None:
            _keep(traces, keep)
        try:
            return diagnose(traces)
        except InputError:
            return None


def _keep(traces: Sequence[Path], keep: Path) -> None:
    """Copy the recordings; of several ranks, `trace.rank0.json.gz` and so on."""
    for trace in traces:
        name = keep.name
        if len(traces) > 1:
            stem = name.removesuffix(".gz").removesuffix(".json")
            name = f"{stem}.{trace.name.removeprefix('trace.')}"
        shutil.copyfile(trace, keep.with_name(name))


# ---- one at a time -----------------------------------------------------------------------

_Measured = tuple[Trial, Candidate]


def _one_at_a_time(runner: Runner, todo: Plan, options: TuneOptions, tell: Tell) -> list[_Measured]:
    base = Side(())
    sides = [Side(((c.remedy, c.value),), c.remedy.work(c.value)) for c in todo.candidates]
    reserve = options.budget_s * (0.3 if options.together and len(sides) > 1 else 0.0)
    size = _affordable(runner, len(sides), reserve)
    interleave(runner, base, sides[:size], tell, until_s=reserve)
    if size < len(sides):
        interleave(runner, base, sides[size:], tell, until_s=reserve)

    def measured() -> list[_Measured]:
        return [
            (trial_of(base, side, candidate), candidate)
            for side, candidate in zip(sides, todo.candidates, strict=True)
        ]

    if len(_best_of_each(measured())) < 2 and runner.left_s > 0:
        # Nothing to put together: what was kept back for it decides what is still open.
        interleave(runner, base, sides, tell, until_s=0.0)
    return measured()


def _affordable(runner: Runner, sides: int, reserve: float) -> int:
    """How many sides three rounds can be afforded for, the most promising first; at least one."""
    each = runner.spent_s / max(runner.runs, 1)
    rounds = (runner.left_s - reserve) / max(each, 0.1) / LEAST_ROUNDS
    return max(min(sides, int(rounds) - 1), 1)


# ---- together ----------------------------------------------------------------------------


def _together(runner: Runner, trials: Sequence[_Measured], tell: Tell) -> Trial | None:
    """Add the accepted remedies one by one, the best first, as long as each still gains."""
    accepted = _best_of_each(trials)
    if not accepted:
        return None
    current: Chosen = ((accepted[0].remedy, accepted[0].value),)
    for candidate in accepted[1:]:
        if runner.left_s <= 0:
            break
        now = Side(current)
        more = Side((*current, (candidate.remedy, candidate.value)))
        interleave(runner, now, [more], tell, until_s=0.0)
        if more.error or not pairs(now, more)[1]:
            continue
        ratio = interval(*pairs(now, more))
        if status_of(ratio, ())[0] == "accepted":
            current = more.chosen
    base, final = Side(()), Side(current)
    if len(current) == 1:
        return next(t for t, c in trials if (c.remedy, c.value) == current[0])
    interleave(runner, base, [final], tell, until_s=-60.0)
    return combined(base, final, current)


def _best_of_each(trials: Sequence[_Measured]) -> list[Candidate]:
    """The best accepted parameter of each remedy, the largest gain first; the knee of threads."""
    best: dict[str, _Measured] = {}
    for trial, candidate in trials:
        if (
            trial.status != "accepted"
            or trial.speedup is None
            or candidate.remedy.work(candidate.value) != 1.0
        ):
            continue
        other = best.get(candidate.remedy.id)
        if other is None or _better(trial, candidate, other):
            best[candidate.remedy.id] = (trial, candidate)
    ordered = sorted(best.values(), key=lambda m: -(m[0].speedup.mid if m[0].speedup else 0.0))
    return [candidate for _, candidate in ordered]


def _better(trial: Trial, candidate: Candidate, other: _Measured) -> bool:
    """Is a parameter better than another one? Within three percent the smaller number is."""
    mine, theirs = trial.speedup, other[0].speedup
    if mine is None or theirs is None:
        return theirs is None
    if (
        candidate.value.isdigit()
        and other[1].value.isdigit()
        and abs(mine.mid / theirs.mid - 1) < KNEE
    ):
        return int(candidate.value) < int(other[1].value)
    return mine.mid > theirs.mid


# ---- the document ------------------------------------------------------------------------


def _document(
    program: Sequence[str],
    runner: Runner,
    report: dict[str, Any],
    trials: list[Trial],
    combination: Trial | None,
    todo: Plan,
) -> Experiment:
    steps = report["steps"]
    skipped = [
        Trial(r.id, r.title, "not_applicable", reason, snippet="") for r, reason in todo.skipped
    ]
    step_ns = next((t.before_ns for t in trials if t.before_ns), round(sum(steps) / len(steps)))
    measured = Experiment(
        schema_version=EXPERIMENT_VERSION,
        kinetoscope=kinetoscope.__version__,
        program=" ".join(program),
        device=str(report["device"]),
        torch=str(report["torch"]),
        sentence="",
        step_ns=step_ns,
        step_mark=runner.mark,
        trials=(*trials, *skipped),
        combination=combination,
        snippet=combination.snippet if combination and combination.status == "accepted" else "",
        spent_s=round(runner.spent_s, 1),
        runs=runner.runs,
        notes=_notes(report, runner),
    )
    return msgspec.structs.replace(measured, sentence=sentence_of(measured))


def _notes(report: dict[str, Any], runner: Runner) -> tuple[str, ...]:
    notes = []
    if runner.left_s < 0:
        notes.append(f"The time budget of {runner.budget_s:.0f} s was spent: --budget gives more.")
    if report["facts"]["dropout"]:
        notes.append("The model trains with dropout: compiled variants draw other numbers.")
    return tuple(notes)
