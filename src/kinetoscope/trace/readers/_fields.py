"""Attributes of many typed events at a time -> arrays and texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from kinetoscope.trace.readers import _schema
from kinetoscope.trace.readers._part import int_array

Array = npt.NDArray[Any]

SHAPE_SEPARATOR = b"\x1e"
"""Between the four texts of one shape; JSON cannot hold it unescaped."""


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


def floats(events: Sequence[Any], name: str) -> Array:
    """A float attribute of each event; null becomes NaN."""
    return np.fromiter(map(attrgetter(name), events), dtype=np.float64, count=len(events))


def ints(args: Sequence[Any], name: str) -> Array:
    """A whole number of each event; wrapped when beyond 64 bit."""
    try:
        return np.fromiter(map(attrgetter(name), args), dtype=np.int64, count=len(args))
    except OverflowError:
        return int_array(map(attrgetter(name), args))


def optional_ints(args: Sequence[Any], name: str) -> Array:
    """The same, with null as -1."""
    return int_array(-1 if v is None else v for v in map(attrgetter(name), args))


def external_ids(args: Sequence[Any]) -> Array:
    """`External id` of each event."""
    values = ints(args, "ext_id")
    if (values == -1).any():  # PyTorch 1.8 wrote it in lower case
        values = np.where(values == -1, ints(args, "ext_id_old"), values)
    return values


def store(columns: dict[str, Array], name: str, values: Array, mask: Array) -> None:
    """Put the values of some rows into a column, which is made unless all are -1."""
    if len(values) == len(mask):
        columns[name] = values
        return
    if name not in columns:
        if (values == -1).all():
            return
        columns[name] = np.full(len(mask), -1, dtype=values.dtype)
    columns[name][mask] = values


def launch_text(joined: bytes) -> bytes:
    """JSON list of the launch attributes, empty if there is none."""
    values = joined.split(SHAPE_SEPARATOR)
    if not any(values):
        return b""
    return b"[" + b", ".join(value or b"null" for value in values) + b"]"


def extra_text(args: Any) -> bytes:
    """JSON object of the extra arguments that an event has."""
    pairs = ((key, getattr(args, name, None)) for name, key in _schema.EXTRA_KEYS)
    return b"{" + b", ".join(b'"%s": %s' % (k.encode(), bytes(v)) for k, v in pairs if v) + b"}"


def independent(event: Any) -> Any:
    """The event, independent of the text that it was decoded from."""
    for owner in (event, event.args):
        for name in getattr(owner, "__struct_fields__", ()):
            value = getattr(owner, name)
            if isinstance(value, msgspec.Raw):
                setattr(owner, name, value.copy())
    return event


def metadata(event: _schema.Meta) -> tuple[str, Any, Any, str]:
    """(kind, pid, tid, text) of a metadata event."""
    args = event.args
    value = (args.name if args.labels is None else args.labels) if args else ""
    return event.name or "", event.pid, event.tid, "" if value is None else str(value)
