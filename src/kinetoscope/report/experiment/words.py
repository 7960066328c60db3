"""The words that the text formats of an experiment share."""

from __future__ import annotations

from kinetoscope import units
from kinetoscope.report.text import clean
from kinetoscope.result.experiment import Experiment, Trial, TrialStatus

STATUSES: dict[TrialStatus, str] = {
    "accepted": "accepted",
    "no_gain": "no gain",
    "harmful": "harmful",
    "changes_result": "changes the result",
    "too_much_memory": "needs too much memory",
    "failed": "fails",
    "undecided": "undecided",
    "not_applicable": "does not apply",
}

REJECTED = ("changes_result", "too_much_memory")
"""However fast they are, the reason matters more."""

STYLES: dict[TrialStatus, str] = {
    "accepted": "green",
    "no_gain": "dim",
    "harmful": "red",
    "changes_result": "red",
    "too_much_memory": "red",
    "failed": "red",
    "undecided": "yellow",
    "not_applicable": "dim",
}


def speedup(trial: Trial) -> str:
    """Return the speed-up with its interval; "" when it was not measured."""
    ratio = trial.speedup
    if ratio is None:
        return ""
    if trial.ended_early:
        return f"at least {units.factor(1 / ratio.high)} slower"
    return f"{units.factor(ratio.mid)} ({units.factor(ratio.low)} to {units.factor(ratio.high)})"


def predicted(trial: Trial) -> str:
    """Return what the diagnosis promised; "" when it promised nothing."""
    gain = trial.predicted
    if gain is None or gain.basis == "none":
        return ""
    return f"{units.factor(gain.mid)} ({units.factor(gain.low)} to {units.factor(gain.high)})"


def guard(trial: Trial) -> str:
    """Return the state of the guards in a few words."""
    failed = [g.name for g in trial.guards if g.status == "failed"]
    passed = [g.name for g in trial.guards if g.status == "passed"]
    if failed:
        return f"{', '.join(failed)} changed"
    return f"{', '.join(passed)} same" if passed else ""


def best(trial: Trial) -> str:
    """Return what to call the combination: of one remedy it is that remedy's own trial."""
    return "Together" if trial.title == "together" else "Best"


_CACHE_HELPS = 0.7


def extras(trial: Trial) -> str:
    """Return compile time, memory and throughput, where they matter."""
    parts = []
    if trial.compile_s >= 0.5:
        again = trial.compile_again_s
        cached = again is not None and again < _CACHE_HELPS * trial.compile_s
        parts.append(
            f"{trial.compile_s:.1f} s more before the first steady step"
            + (f" ({again:.1f} s in later runs)" if cached else "")
        )
    if trial.memory_ratio is not None and abs(trial.memory_ratio - 1) > 0.05:
        parts.append(f"{units.percent(trial.memory_ratio)} of the memory")
    if trial.throughput is not None:
        parts.append(
            f"latency {units.duration(trial.after_ns)}, "
            f"{units.count(trial.throughput)} steps' worth of work a second"
        )
    return ", ".join(parts)


def setting(experiment: Experiment) -> str:
    """Return what was measured on what."""
    return (
        f"{clean(experiment.program)} on {clean(experiment.device)}, torch "
        f"{clean(experiment.torch)}: {units.duration(experiment.step_ns)} a step "
        f"(a step is one {_MARKS.get(experiment.step_mark, 'step')}); "
        f"{units.plural(experiment.runs, 'run')} in {experiment.spent_s:.0f} s"
    )


_MARKS = {
    "optimizer": "step of the optimizer",
    "loader": "batch of the DataLoader",
    "module": "call of the model",
}
