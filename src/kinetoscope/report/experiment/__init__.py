"""An experiment in, text out: terminal, JSON, HTML, Markdown."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from kinetoscope.report import Format, RenderOptions

if TYPE_CHECKING:
    from kinetoscope.result.experiment import Experiment

EXPERIMENT_FORMATS = {
    form.name: form
    for form in (
        Format("terminal", (".txt",), "kinetoscope.report.experiment.terminal"),
        Format("json", (".json",), "kinetoscope.report.experiment.json"),
        Format("html", (".html", ".htm"), "kinetoscope.report.experiment.html"),
        Format("markdown", (".md", ".markdown"), "kinetoscope.report.experiment.markdown"),
    )
}


def render(experiment: Experiment, form: str, options: RenderOptions | None = None) -> str:
    """Return `experiment` in one of `EXPERIMENT_FORMATS`, with a newline at the end."""
    module = import_module(EXPERIMENT_FORMATS[form].home)
    text: str = module.render(experiment, options or RenderOptions())
    return text
