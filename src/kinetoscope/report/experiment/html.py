"""An experiment as one HTML file; see `kinetoscope.report.page`."""

from __future__ import annotations

from html import escape
from typing import Any

import msgspec

from kinetoscope.report import RenderOptions
from kinetoscope.report.experiment import words
from kinetoscope.report.page import page
from kinetoscope.report.page_data import tidy
from kinetoscope.report.text import clean, clean_lines
from kinetoscope.result.experiment import Experiment, Trial


def render(experiment: Experiment, options: RenderOptions) -> str:  # noqa: ARG001 - one signature
    """Return the page."""
    return page(experiment.sentence, _document(experiment), None, _without_script(experiment))


def _document(experiment: Experiment) -> dict[str, Any]:
    best = experiment.combination
    return {
        "kind": "experiment",
        "experiment": tidy(msgspec.to_builtins(experiment)),
        "words": tidy(
            {
                "setting": words.setting(experiment),
                "trials": [_words(trial) for trial in experiment.trials],
                "combination": _words(best) if best else None,
            }
        ),
    }


def _words(trial: Trial) -> dict[str, Any]:
    return {
        "status": words.STATUSES[trial.status],
        "speedup": words.speedup(trial),
        "predicted": words.predicted(trial),
        "extras": words.extras(trial),
        "lines": clean_lines(trial.snippet),
    }


def _without_script(experiment: Experiment) -> list[str]:
    """The answer for a reader whose browser runs no script."""
    lines = [
        f"<h1>{escape(clean(experiment.sentence))}</h1>",
        "<p>This page needs JavaScript for its table. What was measured:</p>",
        "<ul>",
    ]
    for trial in experiment.trials:
        parts = [clean(trial.remedy), words.STATUSES[trial.status], words.speedup(trial)]
        lines.append(f"<li>{escape(' '.join(part for part in parts if part))}</li>")
    return [*lines, "</ul>"]
