"""Text of events -> numpy columns and string pools. Runs in workers: imports no polars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from kinetoscope.trace.readers import _schema, _times
from kinetoscope.trace.readers._part import Chunk, Part, int_array
from kinetoscope.trace.readers._repair import repair_events
from kinetoscope.trace.readers._schema import EMPTY_ARGS, Event, ExactEvent

Array = npt.NDArray[Any]


class Pool(dict[Any, int]):
    """Gives each distinct key the next number on first sight."""

    def __init__(self, missing: Any = None) -> None:
        super().__init__()
        self._first = 0
        if missing is not None:
            self[missing] = -1
            self._first = 1

    def __missing__(self, key: Any) -> int:
        number = len(self) - self._first
        self[key] = number
        return number

    def numbers(self, keys: Iterable[Any], count: int) -> Array:
        """The number of each key."""
        return np.fromiter(map(self.__getitem__, keys), dtype=np.int32, count=count)

    def keys_in_order(self) -> list[Any]:
        """The distinct keys, by number."""
        return list(self)[self._first :]


# Which keys can stand in the args of a category: a column that cannot be there is not looked for.
_ANY, _PYTHON, _OPERATOR, _RUNTIME, _DEVICE = range(5)
_GROUPS = {
    "python_function": _PYTHON,
    "cpu_op": _OPERATOR,
    "Operator": _OPERATOR,
    "user_annotation": _OPERATOR,
    "cuda_runtime": _RUNTIME,
    "cuda_driver": _RUNTIME,
    "Runtime": _RUNTIME,
    "kernel": _DEVICE,
    "Kernel": _DEVICE,
    "gpu_memcpy": _DEVICE,
    "gpu_memset": _DEVICE,
}
_TRIGGERS = {
    _ANY: [name for name, _ in _schema.EXTRA_KEYS[: _schema.EXTRA_TRIGGERS]],
    _PYTHON: ["call_from", "call_stack"],
    _OPERATOR: [name for name, _ in _schema.EXTRA_KEYS[: _schema.EXTRA_TRIGGERS - 2]],
    _RUNTIME: [],
    _DEVICE: ["collective", "group_name"],
}

SHAPE_SEPARATOR = b"\x1e"
"""Between the four texts of one shape; JSON cannot hold it unescaped."""

_GET_SHAPE = attrgetter("dims", "types", "strides", "concrete")
_GET_LAUNCH = attrgetter(*_schema.LAUNCH_ATTRIBUTES)
_GET_PLACE = attrgetter("cat", "pid", "tid")
_GET_NAME, _GET_PHASE, _GET_ARGS = attrgetter("name"), attrgetter("ph"), attrgetter("args")


class Decoder:
    """Turns pieces of a trace into columns; the pools live as long as the decoder.

    Args:
        emit: takes each finished chunk; the default keeps them in the part.
    """

    def __init__(self, emit: Callable[[Chunk], None] | None = None) -> None:
        self.part = Part()
        self._emit = emit or self.part.chunks.append
        self._names = Pool()
        self._categories = Pool()
        self._lanes = Pool()
        self._texts = Pool(missing=b"")
        self._shapes = Pool(missing=SHAPE_SEPARATOR * 3)
        self._places = Pool()
        self._place_tables = np.zeros((3, 0), dtype=np.int32)
        self._memory: list[tuple[int, ...]] = []
        self._fast = msgspec.json.Decoder(list[Event], strict=False)
        self._exact = msgspec.json.Decoder(list[ExactEvent], strict=False)
        self._use_exact = False

    def add(self, index: int, text: bytes | bytearray) -> None:
        """Decode one piece, a JSON array of events, and emit its columns."""
        events = self._events(text)
        phases = list(map(_GET_PHASE, events))
        spans = len(events) - phases.count("s") - phases.count("f") - phases.count("t")
        if phases.count("X") != spans:
            self._add_others(e for e in events if e.ph not in _FLOWS_AND_SPANS)
        if phases.count("X"):
            self.add_spans(index, [e for e in events if e.ph == "X"])

    def add_spans(self, index: int, spans: Sequence[Any]) -> None:
        """Emit the columns of events that are already typed."""
        self._emit(Chunk(index, len(spans), self._columns(spans)))

    def finish(self) -> Part:
        """The pools, and the columns unless they were emitted elsewhere."""
        part = self.part
        part.shapes = [self._split_shape(shape) for shape in self._shapes.keys_in_order()]
        part.names = [name or "" for name in self._names.keys_in_order()]
        part.categories = [category or "" for category in self._categories.keys_in_order()]
        part.lanes = self._lanes.keys_in_order()
        part.texts = self._texts.keys_in_order()
        part.memory = int_array([v for row in self._memory for v in row]).reshape(-1, 7)
        return part

    def _split_shape(self, shape: bytes) -> tuple[int, ...]:
        return tuple(map(self._texts.__getitem__, shape.split(SHAPE_SEPARATOR)))

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
            return repair_events(bytes(text), self.part.repairs)

    def _add_others(self, events: Iterable[Any]) -> None:
        part = self.part
        for event in events:
            part.count_phase(event.ph)
            args = event.args or EMPTY_ARGS
            if event.ph == "M":
                text = bytes(args.meta_name) or bytes(args.meta_labels)
                part.metadata.append((event.name or "", event.pid, event.tid, _plain(text)))
            elif event.ph in {"B", "E"}:
                part.open_pairs.append(event)
            elif event.name == "[memory]":
                self._add_memory(event, args)
            elif event.name == "[OutOfMemory]":
                part.count_phase("[OutOfMemory]")

    def _add_memory(self, event: Any, args: Any) -> None:
        lane = self._lanes[(event.pid, event.tid, None, None)]
        time = int(_time_column([event], "ts", missing=_times.NO_TIME)[0])
        if time == _times.NO_TIME:
            self.part.repairs.add("no_time", "a memory event without a readable time")
            return
        on_host = bytes(args.mem_type).strip(b'"') == b"0"
        device = -1 if on_host else args.mem_device
        row = (args.mem_bytes, args.mem_addr, device, args.mem_allocated, args.mem_reserved)
        self._memory.append((time, lane, *row))

    # -- columns -----------------------------------------------------------------------------

    def _columns(self, spans: Sequence[Any]) -> dict[str, Array]:
        count = len(spans)
        args = [a or EMPTY_ARGS for a in map(_GET_ARGS, spans)]
        places = self._places.numbers(map(_GET_PLACE, spans), count)
        self._extend_place_tables()
        category, lane, group = self._place_tables
        columns: dict[str, Array] = {
            "ts": _time_column(spans, "ts", missing=_times.NO_TIME),
            "dur": _time_column(spans, "dur", missing=0),
            "name": self._names.numbers(map(_GET_NAME, spans), count),
            "cat": category[places].astype(np.int16),
            "lane": lane[places],
        }
        groups = group[places]
        for number in np.flatnonzero(np.bincount(groups)).tolist():
            mask = groups == number
            selected = args if mask.all() else list(compress(args, mask))
            for name, values in self._group_columns(number, selected):
                _store(columns, name, values, mask)
            if number in {_ANY, _DEVICE}:
                events = list(compress(spans, mask))
                columns["lane"][mask] = self._device_lanes(events, selected)
        return columns

    def _extend_place_tables(self) -> None:
        """Category, host lane and group of each distinct (category, pid, tid)."""
        known = self._place_tables.shape[1]
        if known == len(self._places):
            return
        rows = [
            (
                self._categories[category or ""],
                self._lanes[(pid, tid, None, None)],
                _GROUPS.get(category or "", _ANY),
            )
            for category, pid, tid in self._places.keys_in_order()[known:]
        ]
        new = np.array(rows, dtype=np.int32).T
        self._place_tables = np.concatenate([self._place_tables, new], axis=1)

    def _device_lanes(self, events: Sequence[Any], args: Sequence[Any]) -> Array:
        keys = [(e.pid, e.tid, a.device, a.stream) for e, a in zip(events, args, strict=True)]
        return self._lanes.numbers(keys, len(keys))

    def _group_columns(self, group: int, args: Sequence[Any]) -> Iterable[tuple[str, Array]]:
        if group in {_ANY, _PYTHON}:
            yield "py_id", _ints(args, "py_id")
            yield "py_parent", _optional_ints(args, "py_parent")
        if group != _PYTHON:
            yield "ext_id", _external_ids(args)
        if group in {_ANY, _OPERATOR}:
            yield "seq", _ints(args, "seq")
            shapes = map(SHAPE_SEPARATOR.join, map(_GET_SHAPE, args))
            yield "shape", self._shapes.numbers(shapes, len(args))
        if group in {_ANY, _RUNTIME, _DEVICE}:
            yield "corr", _ints(args, "corr")
            yield "bytes", _ints(args, "bytes")
        if group in {_ANY, _DEVICE}:
            yield "launch", self._launch_column(args)
        yield from self._extra_column(args, _TRIGGERS[group])

    def _launch_column(self, args: Sequence[Any]) -> Array:
        keys = list(map(SHAPE_SEPARATOR.join, map(_GET_LAUNCH, args)))
        texts = {key: _launch_text(key) for key in set(keys)}
        return self._texts.numbers(map(texts.__getitem__, keys), len(keys))

    def _extra_column(
        self, args: Sequence[Any], triggers: Sequence[str]
    ) -> Iterable[tuple[str, Array]]:
        present = [name for name in triggers if any(map(attrgetter(name), args))]
        if not present:
            return
        column = np.full(len(args), -1, dtype=np.int32)
        for name in present:
            for row, value in enumerate(map(attrgetter(name), args)):
                if value and column[row] < 0:
                    column[row] = self._texts[_extra_text(args[row])]
        yield "extra", column


_FLOWS_AND_SPANS = frozenset({"X", "s", "t", "f"})


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


def _ints(args: Sequence[Any], name: str) -> Array:
    try:
        return np.fromiter(map(attrgetter(name), args), dtype=np.int64, count=len(args))
    except OverflowError:
        return int_array(map(attrgetter(name), args))


def _optional_ints(args: Sequence[Any], name: str) -> Array:
    return int_array(-1 if v is None else v for v in map(attrgetter(name), args))


def _external_ids(args: Sequence[Any]) -> Array:
    values = _ints(args, "ext_id")
    if (values == -1).any():  # PyTorch 1.8 wrote it in lower case
        values = np.where(values == -1, _ints(args, "ext_id_old"), values)
    return values


def _store(columns: dict[str, Array], name: str, values: Array, mask: Array) -> None:
    if len(values) == len(mask):
        columns[name] = values
        return
    if name not in columns:
        if (values == -1).all():
            return
        columns[name] = np.full(len(mask), -1, dtype=values.dtype)
    columns[name][mask] = values


def _launch_text(joined: bytes) -> bytes:
    values = joined.split(SHAPE_SEPARATOR)
    if not any(values):
        return b""
    return b"[" + b", ".join(value or b"null" for value in values) + b"]"


def _extra_text(args: Any) -> bytes:
    pairs = ((key, getattr(args, name)) for name, key in _schema.EXTRA_KEYS)
    return b"{" + b", ".join(b'"%s": %s' % (k.encode(), bytes(v)) for k, v in pairs if v) + b"}"


def _plain(text: bytes) -> str:
    try:
        value = msgspec.json.decode(text) if text else ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        return text.decode("utf-8", "replace").strip('"')
    return value if isinstance(value, str) else str(value)
