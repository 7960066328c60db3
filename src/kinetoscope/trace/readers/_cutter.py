"""Cuts the text of a trace at event borders, without parsing it.

A file is head + events + tail: `{"schemaVersion": 1, ..., "traceEvents": [` + events +
`], "traceName": ...}`, or a bare array. Within the events, the text from the end of one event to
the first key of the next (`},\\n  {\\n    "ph"`) is the same throughout a file; it is learnt from
the first events. In valid JSON it cannot stand inside a string, as its quotes would be escaped.
Should a border be wrong all the same, the piece does not decode and the repair path takes over.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_STRUCTURE = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_FIRST_KEY = re.compile(rb'\s*,?\s*\{\s*"[^"\\]{1,40}"')
_CLOSE = re.compile(rb'\}\s*\](?=\s*(?:,\s*"[^"]+"\s*:|\}\s*\Z|\Z))')
_ARRAY_CLOSE = re.compile(rb"[\s,]*\]")
_SAMPLE = 200


@dataclass(frozen=True)
class Layout:
    """Where the events start and what stands between two of them.

    Attributes:
        head: text before the events' opening bracket.
        start: offset of the first byte after that bracket.
        border: bytes from the closing brace of an event to the first key of the next; empty if
            there is only one event.
        bare: the file is an array without an object around it.
    """

    head: bytes
    start: int
    border: bytes
    bare: bool


def find_layout(text: bytes) -> Layout | None:
    """The layout, or None if `text` (the first part of the file) holds no start of events."""
    stripped = text.lstrip(b"\xef\xbb\xbf \t\r\n")
    if stripped.startswith(b"["):
        if stripped[1:].lstrip()[:1] not in (b"{", b"]", b"") and b'"ph"' not in text:
            return None  # some other list
        start = len(text) - len(stripped) + 1
        return Layout(b"", start, find_border(text, start), bare=True)
    for match in _EVENTS_KEY.finditer(text):
        if _at_top_level(text, match.start()):
            start = match.end()
            return Layout(text[: match.start()], start, find_border(text, start), bare=False)
    return None


def _at_top_level(text: bytes, end: int) -> bool:
    depth = 0
    for match in _STRUCTURE.finditer(text, 0, end):
        sign = match.group()
        if sign in b"{[":
            depth += 1
        elif sign in b"}]":
            depth -= 1
    return depth == 1


def find_border(text: bytes, start: int) -> bytes:
    """The most frequent border among the first events from `start` on."""
    found: Counter[bytes] = Counter()
    position = start
    for _ in range(_SAMPLE):
        end = value_end(text, position)
        if end < 0:
            break
        match = _FIRST_KEY.match(text, end)
        if match is None:
            break
        found[text[end - 1 : match.end()]] += 1
        position = end
    return found.most_common(1)[0][0] if found else b""


def event_start(border: bytes) -> int:
    """Offset in the border of the next event's opening brace."""
    return border.rindex(b"{")


def value_end(text: bytes, position: int) -> int:
    """Offset behind the next object that starts at or after `position`, or -1 if it is cut off.

    An array that closes before another object starts ends the search too.
    """
    depth = 0
    for match in _STRUCTURE.finditer(text, position):
        sign = match.group()
        if sign in (b"{", b"["):
            depth += 1
        elif sign in (b"}", b"]"):
            depth -= 1
            if depth <= 0:
                return match.end() if depth == 0 else -1
    return -1


@dataclass(frozen=True)
class Ending:
    """How the events end.

    Attributes:
        events: text of the last complete events.
        tail: text behind the closing bracket.
        closed: whether that bracket was found.
        clean: whether nothing was cut off behind the last complete event.
    """

    events: bytes
    tail: bytes
    closed: bool
    clean: bool


def split_ending(text: bytes, border: bytes) -> Ending:
    """Separate the last events from what stands behind the array."""
    last = text.rfind(border) if border else -1
    position = last + event_start(border) if last >= 0 else 0
    while True:
        close = _ARRAY_CLOSE.match(text, position)
        if close:
            return Ending(text[:position], text[close.end() :], closed=True, clean=True)
        end = value_end(text, position)
        if end < 0:
            return _without_close(text, position)
        position = end


def _without_close(text: bytes, position: int) -> Ending:
    """The end of the array could not be reached event by event from `position`."""
    if text.rstrip()[-1:] in (b"}", b"]"):
        # The file is whole, so an event in between is malformed and misled the search.
        for match in _CLOSE.finditer(text, position):
            return Ending(text[: match.start() + 1], text[match.end() :], closed=True, clean=True)
    rest = text[position:].strip(b" \t\r\n,")
    return Ending(text[:position], b"", closed=False, clean=not rest)


def as_array(text: bytes) -> bytes:
    """Events with their separators as a JSON array."""
    return b"[" + text.strip(b" \t\r\n,") + b"]"
