"""The result as one HTML file; see `kinetoscope.report.page`."""

from __future__ import annotations

from html import escape
from typing import Any

import msgspec

from kinetoscope.report import RenderOptions
from kinetoscope.report.comparison.page_document import document as comparison_document
from kinetoscope.report.page import page
from kinetoscope.report.page_data import tidy
from kinetoscope.report.page_words import words
from kinetoscope.report.text import clean, shorten
from kinetoscope.result import Diagnosis

MOST_INPUTS = 64
"""Files of a job that are listed; the page says how many more there are."""


def render(diagnosis: Diagnosis, options: RenderOptions) -> str:
    """Return the page."""
    document = _document(diagnosis)
    if options.comparison is not None:
        document["before"] = comparison_document(options.comparison)
    return page(diagnosis.verdict.sentence, document, options.view, _without_script(diagnosis))


def _document(diagnosis: Diagnosis) -> dict[str, Any]:
    """The result, and its words as the other text formats say them."""
    shown = msgspec.structs.replace(diagnosis, inputs=diagnosis.inputs[:MOST_INPUTS])
    return {
        "kind": "result",
        "result": tidy(msgspec.to_builtins(shown)),
        "words": tidy(words(diagnosis)),
        "more_inputs": max(len(diagnosis.inputs) - MOST_INPUTS, 0),
    }


def _without_script(diagnosis: Diagnosis) -> list[str]:
    """The answer for a reader whose browser runs no script."""
    lines = [
        f"<h1>{escape(clean(diagnosis.verdict.sentence))}</h1>",
        "<p>This page needs JavaScript for its charts and tables. What was found:</p>",
        "<ol>",
    ]
    for finding in diagnosis.findings:
        fix = f" {clean(finding.fix.summary)}" if finding.fix.summary else ""
        text = shorten(f"{clean(finding.code)} {clean(finding.message)}{fix}", 2_000)
        lines.append(f"<li>{escape(text)}</li>")
    return [*lines, "</ol>"]
