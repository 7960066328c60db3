"""An experiment as Markdown."""

from __future__ import annotations

from kinetoscope.report import RenderOptions
from kinetoscope.report.experiment import words
from kinetoscope.report.markdown import code, escape
from kinetoscope.report.text import clean_lines
from kinetoscope.result.experiment import Experiment, Trial


def render(experiment: Experiment, options: RenderOptions) -> str:  # noqa: ARG001 - one signature
    """Return the page, with a newline at the end."""
    parts = [
        f"## Kinetoscope: measured changes\n\n**{escape(experiment.sentence)}**",
        escape(words.setting(experiment)),
        _table(experiment),
        _combination(experiment),
        _skipped(experiment),
        *(escape(note) for note in experiment.notes),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(experiment: Experiment) -> str:
    measured = [t for t in experiment.trials if t.status != "not_applicable"]
    if not measured:
        return ""
    rows = ["| remedy | | speed-up | predicted | guards | |", "|---|---|--:|--:|---|---|"]
    return "\n".join([*rows, *(_row(trial) for trial in measured)])


def _row(trial: Trial) -> str:
    why = "" if trial.speedup is not None and trial.status not in words.REJECTED else trial.reason
    last = "; ".join(part for part in (words.extras(trial), why) if part)
    return (
        f"| {escape(trial.remedy)} | {words.STATUSES[trial.status]} | {words.speedup(trial)} "
        f"| {words.predicted(trial)} | {escape(words.guard(trial))} | {escape(last)} |"
    )


def _skipped(experiment: Experiment) -> str:
    skipped = [t for t in experiment.trials if t.status == "not_applicable"]
    if not skipped:
        return ""
    lines = "\n".join(f"* {escape(t.remedy)}: {escape(t.reason)}" for t in skipped)
    return f"<details><summary>{len(skipped)} do not apply</summary>\n\n{lines}\n\n</details>"


def _combination(experiment: Experiment) -> str:
    best = experiment.combination
    if best is None:
        return ""
    status = words.STATUSES[best.status]
    text = f"{words.best(best)}, {code(best.remedy)}: {status}, {words.speedup(best)}."
    if best.status != "accepted":
        return text
    return "\n".join([text, "", "```python", *clean_lines(best.snippet), "```"])
