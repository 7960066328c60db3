"""The shell of every page: one HTML file that opens without a network and trusts nothing.

The page is a fixed program (`assets/`, built from `web/`) and data. The policy in the page allows
exactly this program and this style by their hashes and no connection at all. Names from a
recording stay text on every way: made visible here, escaped in JSON, written as text nodes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

from kinetoscope.report.page_data import packed
from kinetoscope.report.text import clean, shorten

_ASSETS = files("kinetoscope.report") / "assets"


def page(
    title: str, document: dict[str, Any], view: msgspec.Struct | None, without_script: Sequence[str]
) -> str:
    """Return the page.

    Args:
        title: the answer, for the browser's tab.
        document: what the page's program shows, strict JSON with visible texts.
        view: columns that the program draws from; None: there are none.
        without_script: lines of markup for a reader whose browser runs no script.
    """
    script, style = asset("report.js"), asset("report.css")
    return (
        "<!doctype html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(script, style)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(f'{shorten(clean(title), 120)} Kinetoscope')}</title>\n"
        f"<style>{style}</style>\n</head>\n<body>\n"
        '<div id="app"></div>\n'
        f"<noscript>{chr(10).join(without_script)}</noscript>\n"
        f'<script type="application/json" id="result">{_json(document)}</script>\n'
        f'<script type="text/plain" id="view">{_view(view)}</script>\n'
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


def _json(document: dict[str, Any]) -> str:
    """JSON that can stand inside a script element whatever the names are."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _view(view: msgspec.Struct | None) -> str:
    return "" if view is None else base64.b64encode(packed(view)).decode("ascii")
