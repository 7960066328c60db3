"""The answer of an experiment in words."""

from __future__ import annotations

from kinetoscope import units
from kinetoscope.result.experiment import Experiment


def sentence_of(experiment: Experiment) -> str:
    """Return what was found, in one or two sentences."""
    measured = [t for t in experiment.trials if t.status != "not_applicable"]
    best = experiment.combination
    harmful = [t.remedy for t in measured if t.status == "harmful"]
    changed = [t.remedy for t in measured if t.status == "changes_result"]
    parts = []
    if not measured:
        parts.append("No remedy applies to this program.")
    elif best is not None and best.status == "accepted" and best.speedup is not None:
        span = f"between {units.factor(best.speedup.low)} and {units.factor(best.speedup.high)}"
        parts.append(
            f"{best.remedy} makes a step {units.factor(best.speedup.mid)} faster ({span}): "
            f"{units.duration(best.before_ns)} before, {units.duration(best.after_ns)} after."
        )
    else:
        accepted = [t.remedy for t in measured if t.status == "accepted"]
        if accepted:
            parts.append(f"Accepted: {', '.join(accepted)}.")
        elif all(t.status != "undecided" for t in measured):
            parts.append(f"None of {units.plural(len(measured), 'remedy', 'remedies')} helped.")
    open_ = [t.remedy for t in measured if t.status == "undecided"]
    if open_:
        parts.append(f"Undecided, for want of time or for noise: {', '.join(open_)}.")
    if harmful:
        parts.append(f"Harmful here: {', '.join(harmful)}.")
    if changed:
        parts.append(f"Rejected, as the result changes: {', '.join(changed)}.")
    return " ".join(parts)
