"""The result as one HTML file that opens without a network and trusts nothing.

The page is a fixed program (`assets/`, built from `web/`) and data. The policy in the page allows
exactly this program and this style by their hashes and no connection at all. Names from a
recording stay text on every way: made visible here, escaped in JSON, written as text nodes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

from kinetoscope.report import RenderOptions
from kinetoscope.report.page_data import packed, tidy
from kinetoscope.report.page_words import words
from kinetoscope.report.text import clean, shorten
from kinetoscope.result import Diagnosis
from kinetoscope.result.view import View

_ASSETS = files("kinetoscope.report") / "assets"

MOST_INPUTS = 64
"""Files of a job that are listed; the page says how many more there are."""


def render(diagnosis: Diagnosis, options: RenderOptions) -> str:
    """Return the page."""
    script, style = asset("report.js"), asset("report.css")
    title = f"{shorten(clean(diagnosis.verdict.sentence), 120)} Kinetoscope"
    return (
        "<!doctype html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(script, style)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n"
        f"<style>{style}</style>\n</head>\n<body>\n"
        '<div id="app"></div>\n'
        f"<noscript>{_without_script(diagnosis)}</noscript>\n"
        f'<script type="application/json" id="result">{_json(_document(diagnosis))}</script>\n'
        f'<script type="text/plain" id="view">{_view(options.view)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


@cache
def asset(name: str) -> str:
    """Return one of the two files of the page's program."""
    return (_ASSETS / name).read_text(encoding="utf-8").strip()


def policy(script: str, style: str) -> str:
    """Return the content security policy: this program, this style, nothing else."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def _document(diagnosis: Diagnosis) -> dict[str, Any]:
    """The result, and its words as the other text formats say them."""
    shown = msgspec.structs.replace(diagnosis, inputs=diagnosis.inputs[:MOST_INPUTS])
    return {
        "result": tidy(msgspec.to_builtins(shown)),
        "words": tidy(words(diagnosis)),
        "more_inputs": max(len(diagnosis.inputs) - MOST_INPUTS, 0),
    }


def _json(document: dict[str, Any]) -> str:
    """JSON that can stand inside a script element whatever the names are."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _view(view: View | None) -> str:
    return "" if view is None else base64.b64encode(packed(view)).decode("ascii")


def _without_script(diagnosis: Diagnosis) -> str:
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
    return "\n".join([*lines, "</ol>"])
