"""What a file is that is no trace: people pass archives, databases and pickles."""

from __future__ import annotations

import re

_UNPACK = "Unpack it and pass the trace inside; gzip is the one packing that is read directly."
_UTF8 = "Convert it to UTF-8, for example: iconv -f UTF-16 -t UTF-8 FILE > trace.json"

_SHOW = "`kinetoscope report FILE` shows it again; analyze takes the trace that it came from."
_RESULT = re.compile(rb'\s*\{\s*"schema_version"\s*:\s*\d+\s*,\s*"kinetoscope"')

_KNOWN: tuple[tuple[bytes, str, str], ...] = (
    (b"PK\x03\x04", "a zip archive", _UNPACK),
    (b"\xfd7zXZ\x00", "an xz archive", _UNPACK),
    (b"BZh", "a bzip2 archive", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", _UNPACK),
    (b"\xff\xfe", "text in UTF-16", _UTF8),
    (b"\xfe\xff", "text in UTF-16", _UTF8),
    (
        b"SQLite format 3\x00",
        "a SQLite database",
        "Pass the trace that torch.profiler's export_chrome_trace() wrote.",
    ),
    (
        b"\x80",
        "a Python pickle, perhaps a memory snapshot",
        "Pass the trace that torch.profiler's export_chrome_trace() wrote.",
    ),
    (b"<", "a web page or XML", "Download the trace itself, not the page that shows it."),
)
"""Starts of files, from the formats' specifications."""


def recognised(head: bytes) -> tuple[str, str] | None:
    """Return what a file is by its first bytes, and what to do; None when nothing is known."""
    if _RESULT.match(head):
        return "a saved result of Kinetoscope", _SHOW
    for start, what, hint in _KNOWN:
        if head.startswith(start):
            return what, hint
    return None
