"""A result in, text out. Every format is one small module that sees the result and nothing else.

A format is a name, the suffixes of its files, and a function
`render(diagnosis, options) -> str` in a module that is loaded on use.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING

from kinetoscope.errors import UsageError

if TYPE_CHECKING:
    from kinetoscope.result import Diagnosis
    from kinetoscope.result.comparison import Comparison
    from kinetoscope.result.difference import ComparisonView
    from kinetoscope.result.view import View


@dataclass(frozen=True)
class RenderOptions:
    """How to render; a format ignores what it has no use for.

    Attributes:
        width: columns of the terminal.
        color: whether colours and bold may be used.
        unicode: whether the output can show more than ASCII.
        all_findings: show every finding, not only the first five.
        verbose: show everything that the result holds.
        view: what a page shows beyond the result; None when only a result is at hand.
        comparison: with an earlier result, for a report that shows the way from there to here.
        difference: what the page of a comparison shows beyond it.
    """

    width: int = 100
    color: bool = False
    unicode: bool = True
    all_findings: bool = False
    verbose: bool = False
    view: View | None = None
    comparison: Comparison | None = None
    difference: ComparisonView | None = None


@dataclass(frozen=True)
class Format:
    """One output format and where it is; `shows_view`: it has use for a view."""

    name: str
    suffixes: tuple[str, ...]
    home: str
    shows_view: bool = False


FORMATS = {
    form.name: form
    for form in (
        Format("terminal", (".txt",), "kinetoscope.report.terminal"),
        Format("json", (".json",), "kinetoscope.report.json"),
        Format("html", (".html", ".htm"), "kinetoscope.report.html", shows_view=True),
        Format("markdown", (".md", ".markdown"), "kinetoscope.report.markdown"),
        Format("sarif", (".sarif",), "kinetoscope.report.sarif"),
        Format("github", (".annotations",), "kinetoscope.report.github"),
    )
}


def suffixes() -> tuple[str, ...]:
    """Return the first suffix of every format, for messages."""
    return tuple(sorted(form.suffixes[0] for form in FORMATS.values()))


def format_of(path: str) -> str:
    """Return the format that the suffix of `path` stands for.

    Raises:
        UsageError: no format has this suffix.
    """
    suffix = PurePath(path).suffix.lower()
    for form in FORMATS.values():
        if suffix in form.suffixes:
            return form.name
    what = f"the suffix {suffix!r}" if suffix else "a name without suffix"
    raise UsageError(
        f"cannot write {path}: no format for {what}",
        hint=f"Formats that exist: {', '.join(suffixes())}.",
    )


def render(diagnosis: Diagnosis, form: str, options: RenderOptions | None = None) -> str:
    """Return `diagnosis` in one of `FORMATS`, with a newline at the end."""
    module = import_module(FORMATS[form].home)
    text: str = module.render(diagnosis, options or RenderOptions())
    return text
