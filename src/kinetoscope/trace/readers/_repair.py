"""Events that strict JSON refuses: repaired where the intent is clear, else dropped and counted.

Order: the text of the whole piece is mended and decoded again; then event by event; an event
that still fails keeps its place in time and its ids and loses its arguments; the rest is lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import Raw

from kinetoscope.trace.readers import _schema
from kinetoscope.trace.readers._schema import EXACT, FullArgs, MemoryArgs, Meta, MetaArgs

_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"|(?<![\w."])(?:[-+]?(?:inf(?:inity)?|nan)|N/A|None|undefined)(?![\w"])',
    re.DOTALL | re.IGNORECASE,
)
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_DRIVE = re.compile(r'"[A-Za-z]:\\')
_CONTROL = re.compile(r"[\x00-\x1f]")
_EVENT_START = re.compile(rb'\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|args|s|bp)"\s*:\s*')
_RAW_NAME = re.compile(
    r'("name"\s*:\s*")(.*)("\s*,\s*"(?:ph|cat|pid|tid|ts|dur|args)"\s*:)', re.DOTALL
)
_FLOW = re.compile(r'"ph"\s*:\s*"[stf]"')
_KEPT_FIELD = re.compile(r'"(ph|cat|name|pid|tid|ts|dur)"\s*:\s*("(?:[^"\\]|\\.)*"|-?[\d.]+)')
_KEPT_ID = re.compile(r'"(External id|correlation|stream|device)"\s*:\s*(\d+)')


@dataclass
class Repairs:
    """How often each repair was made, with an example of the first."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, kind: str, example: str = "", count: int = 1) -> None:
        """Count a repair of this kind."""
        self.counts[kind] = self.counts.get(kind, 0) + count
        self.examples.setdefault(kind, example[:160])

    def merge(self, other: Repairs) -> None:
        """Add what another process counted."""
        for kind, count in other.counts.items():
            self.add(kind, other.examples.get(kind, ""), count)


LOSSY = frozenset(
    {
        "broken_args",
        "broken_event",
        "broken_gzip",
        "negative_duration",
        "no_time",
        "truncated",
        "truncated_gzip",
        "zero_time_device",
    }
)
"""Repairs after which something is missing."""


def repair_events(text: bytes, repairs: Repairs) -> list[Any]:
    """The events of a JSON array that does not decode as it stands."""
    local = Repairs()
    mended = mend_text(text, local)
    events = _decode_all(mended)
    if events is None:
        return list(_one_by_one(text, repairs))
    repairs.merge(local)
    return events


def mend_text(text: bytes, repairs: Repairs) -> str:
    """Text with the usual faults of old writers put right, inside and outside of strings."""
    try:
        string = text.decode("utf-8")
    except UnicodeDecodeError as error:
        string = text.decode("utf-8", "replace")
        example = text[max(0, error.start - 40) : error.start + 20].decode("latin-1")
        repairs.add("invalid_utf8", example, string.count("\ufffd"))

    def mend(match: re.Match[str]) -> str:
        token = match.group()
        if token[0] != '"':
            repairs.add("not_a_number", token)
            return "null"
        if "\\" in token:
            token = _mend_escapes(token, repairs)
        if _CONTROL.search(token):
            repairs.add("control_character", ascii(token))
            token = _CONTROL.sub(lambda m: f"\\u{ord(m.group()):04x}", token)
        return token

    return _TOKEN.sub(mend, string)


def _mend_escapes(token: str, repairs: Repairs) -> str:
    found = _ESCAPE.findall(token)
    windows_path = _DRIVE.match(token) is not None and "\\\\" not in token
    if "\\" not in found and not windows_path:
        return token
    repairs.add("bad_escape", token)
    # One bad escape means that the writer escaped none: `\t` in such a path is no tab.
    kept = {'\\"', "\\\\"}
    return _ESCAPE.sub(lambda m: m.group() if m.group() in kept else "\\" + m.group(), token)


def _decode_all(text: str) -> list[Any] | None:
    try:
        return list(EXACT.decoder.decode(text))
    except (msgspec.DecodeError, UnicodeEncodeError):
        pass
    try:
        values = json.loads(text, strict=False, parse_float=_Number)
    except (ValueError, RecursionError):
        return None
    return [coerce(v) for v in values if isinstance(v, dict)]


def _one_by_one(text: bytes, repairs: Repairs) -> Iterator[Any]:
    for piece in _candidates(text):
        try:
            yield EXACT.one.decode(piece)
            continue
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        local = Repairs()
        event = _mend_event(piece, local)
        if event is None:
            repairs.add("broken_event", piece[:120].decode("utf-8", "replace"))
            continue
        repairs.merge(local)
        yield event


def _candidates(text: bytes) -> Iterator[bytes]:
    """Slices that each hold one event, judged by how an event starts and ends."""
    starts = [m.start() for m in _EVENT_START.finditer(text) if _after_event(text, m.start())]
    for start, end in pairwise([*starts, len(text)]):
        yield text[start:end].rstrip(b" \t\r\n,]")


def _after_event(text: bytes, position: int) -> bool:
    before = text[max(0, position - 80) : position].rstrip()
    return not before or before.endswith((b"[", b"},", b"}"))


def _mend_event(piece: bytes, repairs: Repairs) -> Any | None:
    mended = mend_text(piece, repairs)
    event = _decode_one(mended)
    if event is not None:
        return event
    string = piece.decode("utf-8", "replace")
    event = _decode_one(mend_text(_RAW_NAME.sub(_escape_name, string, count=1).encode(), repairs))
    if event is not None:
        repairs.add("unescaped_quote", string)
        return event
    if _FLOW.search(string):
        repairs.add("broken_flow", string)
        return Meta()
    return _without_args(string, repairs)


def _escape_name(match: re.Match[str]) -> str:
    name = json.dumps(match.group(2).replace('\\"', '"'))[1:-1]
    return match.group(1) + name + match.group(3)


def _decode_one(text: str) -> Any | None:
    try:
        value = json.loads(text, strict=False, parse_float=_Number)
    except (ValueError, RecursionError):
        return None
    return coerce(value) if isinstance(value, dict) and "ph" in value else None


def _without_args(text: str, repairs: Repairs) -> Any | None:
    """The event with its ids only, when its arguments cannot be read."""
    head, found, tail = text.partition('"args"')
    fields = dict(_KEPT_FIELD.findall(head))
    if not found or not {"ph", "name", "ts"} <= fields.keys():
        return None
    body = ", ".join(f'"{key}": {value}' for key, value in fields.items())
    ids = ", ".join(f'"{key}": {value}' for key, value in dict(_KEPT_ID.findall(tail)).items())
    event = _decode_one(f'{{{body}, "args": {{{ids}}}}}')
    if event is not None:
        repairs.add("broken_args", text)
    return event


class _Number(float):
    """A JSON number that keeps its text."""

    text: str

    def __new__(cls, text: str) -> _Number:
        number = super().__new__(cls, text)
        number.text = text
        return number


def coerce(value: dict[str, Any]) -> Any:
    """A typed event of a decoded one; values of a wrong type become what they mean or missing.

    An event of a phase that is not used becomes an empty metadata event.
    """
    phase = _string(value.get("ph"))
    lane: dict[str, Any] = {
        "name": _string(value.get("name")),
        "pid": _lane_id(value.get("pid")),
        "tid": _lane_id(value.get("tid")),
    }
    args = value.get("args")
    args = args if isinstance(args, dict) else {}
    if phase == "M":
        return Meta(**lane, args=MetaArgs(args.get("name"), args.get("labels")))
    lane["ts"] = _time_text(value.get("ts"))
    if phase in {"i", "I"}:
        return EXACT.instant[0](**lane, args=_memory_args(args))
    types = {"X": EXACT.span, "B": EXACT.begin, "E": EXACT.end}
    if phase not in types:
        return Meta()
    if phase == "X":
        lane["dur"] = _time_text(value.get("dur"))
    return types[phase](**lane, cat=_string(value.get("cat")), args=_coerce_args(args))


def _memory_args(args: dict[str, Any]) -> MemoryArgs:
    def number(key: str, missing: int) -> int:
        value = _whole(args.get(key))
        return missing if value is None else value

    return MemoryArgs(
        size=number("Bytes", 0),
        address=number("Addr", -1),
        device=number("Device Id", -1),
        allocated=number("Total Allocated", -1),
        reserved=number("Total Reserved", -1),
        device_type=_string(args.get("Device Type")),
    )


def _coerce_args(args: dict[str, Any]) -> Any:
    fields: dict[str, Any] = {}
    for name, key, default in _schema.INT_KEYS:
        if key in args:
            number = _whole(args[key])
            fields[name] = default if number is None else number
    for name, key in (*_schema.RAW_KEYS, *_schema.EXTRA_KEYS):
        if key in args:
            fields[name] = Raw(json.dumps(args[key]).encode())
    return FullArgs(**fields)


def _string(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _lane_id(value: Any) -> int | str | None:
    if isinstance(value, float):
        return int(value) if value.is_integer() else str(value)
    if value is None or (isinstance(value, (int, str)) and not isinstance(value, bool)):
        return value
    return str(value)


def _time_text(value: Any) -> Raw:
    if isinstance(value, _Number):
        return Raw(value.text.encode())
    if isinstance(value, str):
        return Raw(json.dumps(value).encode())
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Raw(repr(value).encode())
    return _schema.NO_TEXT


def _whole(value: Any) -> int | None:
    if isinstance(value, str):
        match = re.search(r"-?\d+", value)
        return int(match.group()) if match else None
    if isinstance(value, float):
        return int(value) if value == value and abs(value) != float("inf") else None  # noqa: PLR0124
    return value if isinstance(value, int) else None


def merge_all(parts: Iterable[Repairs]) -> Repairs:
    """One count over all processes."""
    total = Repairs()
    for part in parts:
        total.merge(part)
    return total
