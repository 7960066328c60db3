"""A view as bytes for a page: JSON in front, the columns behind it, deflated as one."""

from __future__ import annotations

import json
import math
import struct
import zlib
from typing import Any

import msgspec

from kinetoscope.report.text import clean, clean_lines, shorten

LONGEST = 4_000
"""Characters of a text that a page carries; longer ones lose their middle."""
_MANY_LINES = frozenset({"snippet"})


def packed(view: msgspec.Struct) -> bytes:
    """Return the deflated bytes: length of the JSON (u32, little endian), JSON, columns.

    In the JSON a column's `data` is its place among the columns: [first byte, number of bytes].
    """
    columns = bytearray()
    document = tidy(msgspec.to_builtins(view, builtin_types=(bytes,)), columns)
    head = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    data = head.encode("utf-8", "backslashreplace")
    return zlib.compress(struct.pack("<I", len(data)) + data + bytes(columns), 7)


def tidy(value: Any, columns: bytearray | None = None, *, lines: bool = False) -> Any:
    """Return builtins that are strict JSON with visible texts; bytes move to `columns`."""
    if isinstance(value, str):
        return _many_lines(value) if lines else _text(value)
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {
            _text(key): tidy(item, columns, lines=key in _MANY_LINES) for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [tidy(item, columns) for item in value]
    if isinstance(value, bytes) and columns is not None:
        place = [len(columns), len(value)]
        columns += value
        return place
    return value


def _text(text: str) -> str:
    # Shortened first: cleaning a hostile name of megabytes would make it several times longer.
    return shorten(clean(shorten(text, LONGEST)), 2 * LONGEST)


def _many_lines(text: str) -> str:
    return "\n".join(shorten(line, 400) for line in clean_lines(shorten(text, LONGEST)))
