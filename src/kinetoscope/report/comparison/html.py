"""A comparison as one HTML file; see `kinetoscope.report.page`."""

from __future__ import annotations

from html import escape

from kinetoscope.report import RenderOptions
from kinetoscope.report.comparison import words
from kinetoscope.report.comparison.page_document import document
from kinetoscope.report.page import page
from kinetoscope.report.text import clean
from kinetoscope.result.comparison import Comparison


def render(comparison: Comparison, options: RenderOptions) -> str:
    """Return the page."""
    sentence = comparison.verdict.sentence
    return page(sentence, document(comparison), options.difference, _without_script(comparison))


def _without_script(comparison: Comparison) -> list[str]:
    """The answer for a reader whose browser runs no script."""
    changes = comparison.findings
    lines = [
        f"<h1>{escape(clean(comparison.verdict.sentence))}</h1>",
        "<p>This page needs JavaScript for its charts and tables.</p>",
        f"<p>Before: {escape(words.side(comparison.before))}</p>",
        f"<p>After: {escape(words.side(comparison.after))}</p>",
        "<ul>",
    ]
    for word, items in (("Gone", changes.gone), ("Stayed", changes.stayed), ("New", changes.new)):
        lines += [f"<li>{word}: {escape(words.finding(item))}</li>" for item in items]
    lines += [f"<li>{escape(words.prediction(item))}</li>" for item in comparison.predictions]
    return [*lines, "</ul>"]
