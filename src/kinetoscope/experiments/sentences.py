"""The answer of an experiment in words."""

from __future__ import annotations

from kinetoscope import units
from kinetoscope.result.experiment import Experiment, TrialStatus

FEW = 3
"""So many remedies that do not apply are named with the reason where nothing else was tried."""


def sentence_of(experiment: Experiment) -> str:
    """Return what was found, in one or two sentences."""
    measured = [t for t in experiment.trials if t.status != "not_applicable"]
    best = experiment.combination
    parts = []
    if not measured:
        few = experiment.trials if len(experiment.trials) <= FEW else ()
        why = [f"{t.remedy} does not apply: {t.reason}." for t in few]
        parts.append(" ".join(why) or "No remedy applies to this program.")
    elif best is not None and best.status == "accepted" and best.speedup is not None:
        span = f"between {units.factor(best.speedup.low)} and {units.factor(best.speedup.high)}"
        parts.append(
            f"{best.remedy} makes a step {units.factor(best.speedup.mid)} faster ({span}): "
            f"{units.duration(best.before_ns)} before, {units.duration(best.after_ns)} after."
        )
    for status, text in _LISTS:
        names = [t.remedy for t in measured if t.status == status]
        if names and not (status == "accepted" and parts):
            parts.append(f"{text}: {', '.join(names)}.")
    return " ".join(parts)


_LISTS: tuple[tuple[TrialStatus, str], ...] = (
    ("accepted", "Accepted"),
    ("undecided", "Undecided, for want of time or for noise"),
    ("no_gain", "No gain"),
    ("harmful", "Harmful here"),
    ("too_much_memory", "Rejected, as it needs much more memory"),
    ("changes_result", "Rejected, as the result changes"),
    ("failed", "The program fails with"),
)
"""What is said of the remedies of each status, in this order."""
