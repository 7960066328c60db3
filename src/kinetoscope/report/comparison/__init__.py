"""A comparison in, text out: the same formats as for a result, as far as they fit."""

from __future__ import annotations

from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING

from kinetoscope.errors import UsageError
from kinetoscope.report import Format, RenderOptions

if TYPE_CHECKING:
    from kinetoscope.result.comparison import Comparison

COMPARISON_FORMATS = {
    form.name: form
    for form in (
        Format("terminal", (".txt",), "kinetoscope.report.comparison.terminal"),
        Format("json", (".json",), "kinetoscope.report.comparison.json"),
        Format("html", (".html", ".htm"), "kinetoscope.report.comparison.html", shows_view=True),
        Format("markdown", (".md", ".markdown"), "kinetoscope.report.comparison.markdown"),
    )
}


def format_of(path: str) -> str:
    """Return the format that the suffix of `path` stands for.

    Raises:
        UsageError: no format has this suffix.
    """
    suffix = PurePath(path).suffix.lower()
    for form in COMPARISON_FORMATS.values():
        if suffix in form.suffixes:
            return form.name
    known = ", ".join(form.suffixes[0] for form in COMPARISON_FORMATS.values())
    raise UsageError(
        f"cannot write {path}: no format for a comparison has this suffix",
        hint=f"Formats that exist: {known}.",
    )


def render(comparison: Comparison, form: str, options: RenderOptions | None = None) -> str:
    """Return `comparison` in one of `COMPARISON_FORMATS`, with a newline at the end."""
    module = import_module(COMPARISON_FORMATS[form].home)
    text: str = module.render(comparison, options or RenderOptions())
    return text
