"""The columns of all decoders as one: pools merged, chunks in file order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kinetoscope.trace.kinds import Family, Kind
from kinetoscope.trace.readers._decode import Chunk, Part, wrap64

Array = npt.NDArray[Any]

_TYPES: dict[str, Any] = {
    "ts": np.int64,
    "dur": np.int64,
    "cat": np.int16,
    "name": np.int32,
    "lane": np.int32,
    "ext_id": np.int64,
    "corr": np.int64,
    "seq": np.int64,
    "bytes": np.int64,
    "py_id": np.int32,
    "py_parent": np.int32,
    "dims": np.int32,
    "types": np.int32,
    "strides": np.int32,
    "concrete": np.int32,
    "launch": np.int32,
    "extra": np.int32,
}
_POOL_OF = {
    "name": "names",
    "cat": "categories",
    "lane": "lanes",
    **dict.fromkeys(("dims", "types", "strides", "concrete", "launch", "extra"), "texts"),
}


class Merged:
    """One view of several parts; a column's chunks are freed when it is taken.

    Attributes:
        names, categories, lanes, texts: the merged pools.
        rows: number of events before any is left out.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.names: list[str] = []
        self.categories: list[str] = []
        self.lanes: list[Any] = []
        self.texts: list[bytes] = []
        self._maps: list[dict[str, Array | None]] = [{} for _ in parts]
        for pool in ("names", "categories", "lanes", "texts"):
            self._merge_pool(pool, parts)
        chunks = [(chunk, number) for number, part in enumerate(parts) for chunk in part.chunks]
        chunks.sort(key=lambda pair: pair[0].index)
        self._chunks: list[tuple[Chunk, int]] = chunks
        self.rows = sum(chunk.rows for chunk, _ in chunks)

    def _merge_pool(self, pool: str, parts: Sequence[Part]) -> None:
        if len(parts) == 1:
            setattr(self, pool, getattr(parts[0], pool))
            self._maps[0][pool] = None
            return
        numbers: dict[Any, int] = {}
        for part, maps in zip(parts, self._maps, strict=True):
            own = [numbers.setdefault(key, len(numbers)) for key in getattr(part, pool)]
            maps[pool] = np.array([*own, -1], dtype=np.int32)  # -1 stays -1
        setattr(self, pool, list(numbers))

    def values(self, column: str) -> Array:
        """The column over all chunks in file order, -1 where a chunk lacks it."""
        result = np.empty(self.rows, dtype=_TYPES[column])
        start = 0
        for chunk, number in self._chunks:
            end = start + chunk.rows
            result[start:end] = self._chunk_values(chunk, number, column)
            start = end
        return result

    def _chunk_values(self, chunk: Chunk, number: int, column: str) -> Array | int:
        values = chunk.columns.get(column)
        if values is None:
            return -1
        pool = _POOL_OF.get(column)
        mapping = self._maps[number][pool] if pool else None
        return values if mapping is None else mapping[values]

    def take(self, column: str, rows: Array) -> Array:
        """The column at these rows; its chunks are freed."""
        values = self.values(column)
        for chunk, _ in self._chunks:
            chunk.columns.pop(column, None)
        return values[rows]


def mark_collectives(kind: Array, family: Array, extra: Array, texts: Sequence[bytes]) -> None:
    """A kernel with a `Collective name` is communication, whatever it is called (in place)."""
    named = np.array([b'"Collective name"' in text for text in texts], dtype=bool)
    if not named.any():
        return
    rows = (kind == Kind.KERNEL) & (extra >= 0)
    rows[rows] = named[extra[rows]]
    kind[rows] = Kind.COLLECTIVE
    family[rows] = Family.NONE


def int_array(values: Iterable[int]) -> Array:
    """int64 of whole numbers of any size; those beyond 64 bit signed are wrapped."""
    numbers = list(values)
    try:
        return np.array(numbers, dtype=np.int64)
    except OverflowError:
        return np.array([wrap64(number) for number in numbers], dtype=np.int64)
