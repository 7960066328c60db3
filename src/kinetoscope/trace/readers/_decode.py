"""Text of events -> numpy columns and string pools. Runs in workers: imports no polars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from kinetoscope.trace.readers import _fields, _schema, _times
from kinetoscope.trace.readers._fields import SHAPE_SEPARATOR, Pool
from kinetoscope.trace.readers._part import MEMORY_FIELDS, Chunk, Part, int_array
from kinetoscope.trace.readers._repair import repair_events
from kinetoscope.trace.readers._schema import EMPTY_ARGS, EXACT, SCHEMAS, Meta, Schema

Array = npt.NDArray[Any]


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
    _ANY: [name for name, _ in _schema.EXTRA_KEYS[: _schema.TRIGGERS]],
    _PYTHON: ["call_from", "call_stack"],
    _OPERATOR: ["collective", "call_stack", "hierarchy", "call_from", "kernel_file"],
    _RUNTIME: [],
    _DEVICE: ["collective", "group_name"],
}

_GET_SHAPE = attrgetter("dims", "types", "strides", "concrete")
_GET_LAUNCH = attrgetter(*_schema.LAUNCH_ATTRIBUTES)
_GET_PLACE = attrgetter("cat", "pid", "tid")
_GROUPED = frozenset({"collective", "kernel_file", "sync_kind", "group_name"})
"""Extra arguments that bring others with them."""

LONGEST_NAME = 50_000
"""Characters that are kept of a name. Kernels of template libraries have up to ten thousand; what
is longer is no name, and every look at it would take seconds."""

_FAILED = "[OutOfMemory]"
_NOTHING = _schema.MemoryArgs()
_GET_NAME, _GET_ARGS = attrgetter("name"), attrgetter("args")


class _AnotherSchemaError(Exception):
    """The piece has to be decoded again with a schema that takes more."""

    def __init__(self, *, exact: bool = False, full: bool = False) -> None:
        super().__init__()
        self.exact = exact
        self.full = full


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
        self._schema = SCHEMAS[(False, False)]
        self._grouped = False

    def add(self, index: int, text: bytes | bytearray | memoryview) -> None:
        """Decode one piece, a JSON array of events, and emit its columns."""
        events, schema = self._events(text)
        spans = [e for e in events if type(e) is schema.span]
        exact = schema.exact or _times.needs_text(_fields.floats(spans or _timed(events), "ts"))
        try:
            if exact and not schema.exact:
                raise _AnotherSchemaError(exact=True)
            self._grouped = False
            columns = self._columns(spans, schema) if spans else None
            self._add_others(events, schema)
        except _AnotherSchemaError as error:
            self._schema = SCHEMAS[(error.exact or exact, error.full or schema.full)]
            self.add(index, text)
            return
        self._schema = SCHEMAS[(exact, self._grouped)]  # the next piece will be like this one
        if columns is not None:
            self._emit(Chunk(index, len(spans), columns))

    def add_spans(self, index: int, spans: Sequence[Any]) -> None:
        """Emit the columns of spans made by `_pairs`."""
        self._emit(Chunk(index, len(spans), self._columns(spans, EXACT)))

    def finish(self) -> Part:
        """The pools, and the columns unless they were emitted elsewhere."""
        part = self.part
        part.shapes = [self._split_shape(shape) for shape in self._shapes.keys_in_order()]
        part.names = [self._short(name or "") for name in self._names.keys_in_order()]
        part.categories = [category or "" for category in self._categories.keys_in_order()]
        part.lanes = self._lanes.keys_in_order()
        part.texts = self._texts.keys_in_order()
        values = int_array([v for row in self._memory for v in row])
        part.memory = values.reshape(-1, MEMORY_FIELDS)
        return part

    def _short(self, name: str) -> str:
        if len(name) > LONGEST_NAME:
            self.part.repairs.add("long_name", name)
        return name[:LONGEST_NAME]

    def _split_shape(self, shape: bytes) -> tuple[int, ...]:
        return tuple(map(self._texts.__getitem__, shape.split(SHAPE_SEPARATOR)))

    # -- events ------------------------------------------------------------------------------

    def _events(self, text: bytes | bytearray | memoryview) -> tuple[Sequence[Any], Schema]:
        for schema in (self._schema, EXACT):
            try:
                return schema.decoder.decode(text), schema
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
        return repair_events(bytes(text), self.part.repairs), EXACT

    def _add_others(self, events: Sequence[Any], schema: Schema) -> None:
        """What is no span: few, except for flows, of which nothing is kept."""
        kinds = set(map(type, events))
        if not (schema.full or kinds.isdisjoint({schema.begin, schema.end})):
            raise _AnotherSchemaError(full=True)
        if Meta in kinds:
            self.part.metadata.extend(_fields.metadata(e) for e in events if type(e) is Meta)
        if not kinds.isdisjoint(schema.instant):
            self._add_instants([e for e in events if type(e) in schema.instant], schema)
        if schema.begin in kinds or schema.end in kinds:
            pairs = [e for e in events if type(e) in {schema.begin, schema.end}]
            self.part.open_pairs.extend(map(_fields.independent, pairs))

    def _add_instants(self, events: Sequence[Any], schema: Schema) -> None:
        events = [
            e for e in events if e.name == _FAILED or (e.name == "[memory]" and e.args is not None)
        ]
        times = _time_column(events, "ts", missing=_times.NO_TIME, exact=schema.exact)
        for event, time in zip(events, times.tolist(), strict=True):
            failed = event.name == _FAILED
            if time == _times.NO_TIME and not failed:
                self.part.repairs.add("no_time", "a memory event without a readable time")
                continue
            lane = self._lanes[(event.pid, event.tid, None, None)]
            args = event.args or _NOTHING
            size = args.size or -1 if failed else args.size
            device = -1 if args.device_type in {0, "0"} else args.device
            row = (size, args.address, device, args.allocated, args.reserved, int(failed))
            self._memory.append((time, lane, *row))

    # -- columns -----------------------------------------------------------------------------

    def _columns(self, spans: Sequence[Any], schema: Schema) -> dict[str, Array]:
        exact = schema.exact
        count = len(spans)
        args = [a or EMPTY_ARGS for a in map(_GET_ARGS, spans)]
        places = self._places.numbers(map(_GET_PLACE, spans), count)
        self._extend_place_tables()
        category, lane, group = self._place_tables
        columns: dict[str, Array] = {
            "ts": _time_column(spans, "ts", missing=_times.NO_TIME, exact=exact),
            "dur": _time_column(spans, "dur", missing=0, exact=exact),
            "name": self._names.numbers(map(_GET_NAME, spans), count),
            "cat": category[places].astype(np.int16),
            "lane": lane[places],
        }
        groups = group[places]
        for number in np.flatnonzero(np.bincount(groups)).tolist():
            mask = groups == number
            selected = args if mask.all() else list(compress(args, mask))
            for name, values in self._group_columns(number, selected, full=schema.full):
                _fields.store(columns, name, values, mask)
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

    def _group_columns(
        self, group: int, args: Sequence[Any], *, full: bool
    ) -> Iterable[tuple[str, Array]]:
        if group in {_ANY, _PYTHON}:
            yield "py_id", _fields.ints(args, "py_id")
            yield "py_parent", _fields.optional_ints(args, "py_parent")
        if group != _PYTHON:
            yield "ext_id", _fields.external_ids(args)
        if group in {_ANY, _OPERATOR}:
            yield "seq", _fields.ints(args, "seq")
            shapes = map(SHAPE_SEPARATOR.join, map(_GET_SHAPE, args))
            yield "shape", self._shapes.numbers(shapes, len(args))
        if group in {_ANY, _RUNTIME, _DEVICE}:
            yield "corr", _fields.ints(args, "corr")
            yield "bytes", _fields.ints(args, "bytes")
        if group in {_ANY, _DEVICE}:
            yield "launch", self._launch_column(args)
        yield from self._extra_column(args, _TRIGGERS[group], full=full)

    def _launch_column(self, args: Sequence[Any]) -> Array:
        keys = list(map(SHAPE_SEPARATOR.join, map(_GET_LAUNCH, args)))
        texts = {key: _fields.launch_text(key) for key in set(keys)}
        return self._texts.numbers(map(texts.__getitem__, keys), len(keys))

    def _extra_column(
        self, args: Sequence[Any], triggers: Sequence[str], *, full: bool
    ) -> Iterable[tuple[str, Array]]:
        present = [name for name in triggers if any(map(attrgetter(name), args))]
        if not present:
            return
        if not _GROUPED.isdisjoint(present):
            self._grouped = True
            if not full:
                raise _AnotherSchemaError(full=True)
        column = np.full(len(args), -1, dtype=np.int32)
        for name in present:
            for row, value in enumerate(map(attrgetter(name), args)):
                if value and column[row] < 0:
                    column[row] = self._texts[_fields.extra_text(args[row])]
        yield "extra", column


def _timed(events: Sequence[Any]) -> list[Any]:
    return [e for e in events if hasattr(e, "ts")]


def _time_column(events: Sequence[Any], name: str, *, missing: int, exact: bool) -> Array:
    if exact:
        texts = list(map(bytes, map(attrgetter(name), events)))
        return _times.from_texts(texts, missing=missing)
    floats = _fields.floats(events, name)  # null becomes NaN
    if not missing:
        floats = np.nan_to_num(floats, copy=False)
    if _times.needs_text(floats):
        raise _AnotherSchemaError(exact=True)
    times = _times.from_floats(floats)
    if missing:
        times[floats == _schema.NO_TS] = missing
    return times
