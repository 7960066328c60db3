"""Text of events -> numpy columns and string pools. Runs in workers: imports no polars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from kinetoscope.trace.readers import _schema, _times
from kinetoscope.trace.readers._repair import Repairs, repair_events
from kinetoscope.trace.readers._schema import EMPTY_ARGS, Event, ExactEvent

Array = npt.NDArray[Any]
Lane = tuple[Any, Any, Any, Any]


class Pool(dict[Any, int]):
    """Gives each distinct key the next number on first sight."""

    first = 0

    def __missing__(self, key: Any) -> int:
        number = len(self) - self.first
        self[key] = number
        return number


def _text_pool() -> Pool:
    pool = Pool()
    pool.first = 1
    pool[b""] = -1
    return pool


@dataclass
class Chunk:
    """The columns of one piece; a column that is missing is -1 throughout."""

    index: int
    rows: int
    columns: dict[str, Array]


@dataclass
class Part:
    """What one process has read."""

    chunks: list[Chunk] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    categories: list[str] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    memory: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)
    """(ts, lane, (bytes, addr, device, allocated, reserved)) of each `[memory]` instant."""
    metadata: list[tuple[str, Any, Any, str]] = field(default_factory=list)
    """(kind, pid, tid, text) of each `M` event."""
    open_pairs: list[tuple[int, Any]] = field(default_factory=list)
    """`B` and `E` events with the piece they stand in; never leaves its process."""
    repairs: Repairs = field(default_factory=Repairs)
    phases: Counter[str] = field(default_factory=Counter)


_GROUPS = {
    "python_function": 1,
    "cpu_op": 2,
    "operator": 2,
    "user_annotation": 2,
    "cuda_runtime": 3,
    "cuda_driver": 3,
    "kernel": 4,
    "gpu_memcpy": 4,
    "gpu_memset": 4,
}
"""Which keys can stand in the args of a category; 0 is all of them."""

_FLOWS_AND_SPANS = frozenset({"X", "s", "t", "f"})
_TEXT_COLUMNS = ("dims", "types", "strides", "concrete")
_GET_TRIGGERS = [attrgetter(name) for name, _ in _schema.EXTRA_KEYS[: _schema.EXTRA_TRIGGERS]]
_GET_LAUNCH = attrgetter(*_schema.LAUNCH_ATTRIBUTES)
_GET_LANE = attrgetter("pid", "tid")


class Decoder:
    """Turns pieces of a trace into columns; the pools live as long as the decoder."""

    def __init__(self) -> None:
        self.part = Part()
        self._names = Pool()
        self._categories = Pool()
        self._lanes = Pool()
        self._texts = _text_pool()
        self._groups: list[int] = []
        self._fast = msgspec.json.Decoder(list[Event])
        self._exact = msgspec.json.Decoder(list[ExactEvent])
        self._use_exact = False

    def add(self, index: int, text: bytes | bytearray) -> None:
        """Decode one piece, a JSON array of events, and append its columns."""
        events = self._events(text)
        others = [e for e in events if e.ph not in _FLOWS_AND_SPANS]
        if others:
            self._add_others(index, others)
        spans = [e for e in events if e.ph == "X"]
        if spans:
            self.part.chunks.append(Chunk(index, len(spans), self._columns(spans)))

    def finish(self) -> Part:
        """The columns with the pools in the order of their numbers."""
        part = self.part
        part.names = list(self._names)
        part.categories = list(self._categories)
        part.lanes = list(self._lanes)
        part.texts = list(self._texts)[1:]
        return part

    def add_events(self, index: int, events: Sequence[Any]) -> None:
        """Append events that are already typed (`B`/`E` pairs made into spans)."""
        self.part.chunks.append(Chunk(index, len(events), self._columns(events)))

    # -- events ------------------------------------------------------------------------------

    def _events(self, text: bytes | bytearray) -> Sequence[Any]:
        try:
            if not self._use_exact:
                events = self._fast.decode(text)
                if not _times.needs_text(_floats(events, "ts")):
                    return events
                self._use_exact = True
            return self._exact.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        try:
            return self._exact.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return repair_events(bytes(text), self.part.repairs)

    def _add_others(self, index: int, events: Iterable[Any]) -> None:
        part = self.part
        for event in events:
            part.phases[event.ph] += 1
            args = event.args or EMPTY_ARGS
            if event.ph == "M":
                text = bytes(args.meta_name) or bytes(args.meta_labels)
                part.metadata.append((event.name or "", event.pid, event.tid, _plain(text)))
            elif event.ph in {"B", "E"}:
                part.open_pairs.append((index, event))
            elif event.name == "[memory]":
                self._add_memory(event, args)
            elif event.name == "[OutOfMemory]":
                part.phases["[OutOfMemory]"] += 1

    def _add_memory(self, event: Any, args: Any) -> None:
        lane = self._lanes[(event.pid, event.tid, None, None)]
        time = int(_time_column([event], "ts", missing=_times.NO_TIME)[0])
        device = args.mem_device if bytes(args.mem_type) not in {b"0", b'"0"'} else -1
        values = (args.mem_bytes, args.mem_addr, device, args.mem_allocated, args.mem_reserved)
        self.part.memory.append((time, lane, values))

    # -- columns -----------------------------------------------------------------------------

    def _columns(self, spans: Sequence[Any]) -> dict[str, Array]:
        count = len(spans)
        args = [e.args or EMPTY_ARGS for e in spans]
        columns: dict[str, Array] = {
            "ts": _time_column(spans, "ts", missing=_times.NO_TIME),
            "dur": _time_column(spans, "dur", missing=0),
            "name": _numbers(self._names, [e.name or "" for e in spans]),
        }
        categories = _numbers(self._categories, [e.cat or "" for e in spans])
        columns["cat"] = categories.astype(np.int16)
        groups = self._group_of(categories)
        lanes = np.empty(count, dtype=np.int32)
        columns["lane"] = lanes
        for group in np.unique(groups).tolist():
            mask = groups == group
            selected = args if mask.all() else list(compress(args, mask))
            events = spans if mask.all() else list(compress(spans, mask))
            lanes[mask] = self._lane_numbers(group, events, selected)
            for name, values in self._group_columns(group, selected):
                _store(columns, name, values, mask)
        return columns

    def _group_of(self, categories: Array) -> Array:
        for category in list(self._categories)[len(self._groups) :]:
            self._groups.append(_GROUPS.get(category.lower(), 0))
        return np.array(self._groups, dtype=np.int8)[categories]

    def _lane_numbers(self, group: int, events: Sequence[Any], args: Sequence[Any]) -> Array:
        if group in {1, 2, 3}:
            keys: Iterable[Any] = [(e.pid, e.tid, None, None) for e in events]
        else:
            keys = [(e.pid, e.tid, a.device, a.stream) for e, a in zip(events, args, strict=True)]
        return _numbers(self._lanes, keys, len(events))

    def _group_columns(self, group: int, args: Sequence[Any]) -> Iterable[tuple[str, Array]]:
        if group in {0, 1}:
            yield "py_id", _ints(args, "py_id")
            yield "py_parent", _optional_ints(args, "py_parent")
        if group != 1:
            yield "ext_id", _external_ids(args)
        if group in {0, 2}:
            yield "seq", _ints(args, "seq")
            for name in _TEXT_COLUMNS:
                yield name, self._text_column(args, name)
        if group in {0, 3, 4}:
            yield "corr", _ints(args, "corr")
            yield "bytes", _ints(args, "bytes")
        if group in {0, 4}:
            yield "launch", self._launch_column(args)
        if group != 3:
            yield from self._extra_column(args)

    def _text_column(self, args: Sequence[Any], name: str) -> Array:
        return _numbers(self._texts, map(bytes, map(attrgetter(name), args)), len(args))

    def _launch_column(self, args: Sequence[Any]) -> Array:
        keys = [tuple(map(bytes, raws)) for raws in map(_GET_LAUNCH, args)]
        texts = {key: _launch_text(key) for key in set(keys)}
        return _numbers(self._texts, map(texts.__getitem__, keys), len(keys))

    def _extra_column(self, args: Sequence[Any]) -> Iterable[tuple[str, Array]]:
        none = _schema.NO_TEXT
        rows: set[int] = set()
        for get in _GET_TRIGGERS:
            values = list(map(get, args))
            if values.count(none) != len(values):
                rows.update(i for i, value in enumerate(values) if value is not none)
        if not rows:
            return
        column = np.full(len(args), -1, dtype=np.int32)
        for row in rows:
            column[row] = self._texts[_extra_text(args[row])]
        yield "extra", column


def _floats(events: Sequence[Any], name: str) -> Array:
    return np.fromiter(map(attrgetter(name), events), dtype=np.float64, count=len(events))


def _time_column(events: Sequence[Any], name: str, *, missing: int) -> Array:
    if isinstance(events[0], ExactEvent):
        texts = list(map(bytes, map(attrgetter(name), events)))
        return _times.from_texts(texts, missing=missing)
    try:
        floats = _floats(events, name)
    except TypeError:  # "dur": null
        values = map(attrgetter(name), events)
        floats = np.array([0.0 if v is None else v for v in values], dtype=np.float64)
    times = _times.from_floats(floats)
    if missing:
        times[floats == _schema.NO_TS] = missing
    return times


def _numbers(pool: Pool, keys: Iterable[Any], count: int = -1) -> Array:
    return np.fromiter(map(pool.__getitem__, keys), dtype=np.int32, count=count)


def _ints(args: Sequence[Any], name: str) -> Array:
    return _int_array(list(map(attrgetter(name), args)))


def _optional_ints(args: Sequence[Any], name: str) -> Array:
    return _int_array([-1 if v is None else v for v in map(attrgetter(name), args)])


def _external_ids(args: Sequence[Any]) -> Array:
    values = _ints(args, "ext_id")
    if (values == -1).any():  # PyTorch 1.8 wrote it in lower case
        old = _ints(args, "ext_id_old")
        values = np.where(values == -1, old, values)
    return values


def _int_array(values: list[int]) -> Array:
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array([wrap64(v) for v in values], dtype=np.int64)


def wrap64(value: int) -> int:
    """An id of any size as signed 64 bit two's complement, so that equal ids stay equal."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    return value - (1 << 64) if value >> 63 else value


def _store(columns: dict[str, Array], name: str, values: Array, mask: Array) -> None:
    if len(values) == len(mask):
        columns[name] = values
        return
    if name not in columns:
        if (values == -1).all():
            return
        columns[name] = np.full(len(mask), -1, dtype=values.dtype)
    columns[name][mask] = values


def _launch_text(values: tuple[bytes, ...]) -> bytes:
    if not any(values):
        return b""
    return b"[" + b", ".join(value or b"null" for value in values) + b"]"


def _extra_text(args: Any) -> bytes:
    pairs = ((key, bytes(getattr(args, name))) for name, key in _schema.EXTRA_KEYS)
    return b"{" + b", ".join(b'"%s": %s' % (k.encode(), v) for k, v in pairs if v) + b"}"


def _plain(text: bytes) -> str:
    try:
        value = msgspec.json.decode(text) if text else ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        return text.decode("utf-8", "replace").strip('"')
    return value if isinstance(value, str) else str(value)

