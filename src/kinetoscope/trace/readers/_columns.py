"""The columns of all decoders as one: pools merged, chunks in file order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kinetoscope.trace.kinds import Family, Kind
from kinetoscope.trace.readers._part import Chunk, Part, Stored

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
    "shape": np.int32,
    "launch": np.int32,
    "extra": np.int32,
}
_POOL_OF = {
    "name": "names",
    "cat": "categories",
    "lane": "lanes",
    "shape": "shapes",
    "launch": "texts",
    "extra": "texts",
}


class Merged:
    """One view of several parts; a column's chunks are freed when it is taken.

    Attributes:
        names, categories, lanes, texts, shapes: the merged pools.
        rows: number of events before any is left out.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.names: list[str] = []
        self.categories: list[str] = []
        self.lanes: list[Any] = []
        self.texts: list[bytes] = []
        self.shapes: list[tuple[int, ...]] = []
        self._maps: list[dict[str, Array | None]] = [{} for _ in parts]
        for pool in ("names", "categories", "lanes", "texts"):
            self._merge_pool(pool, parts, [getattr(part, pool) for part in parts])
        self._merge_pool("shapes", parts, [self._merged_shapes(n, p) for n, p in enumerate(parts)])
        chunks = [(chunk, number) for number, part in enumerate(parts) for chunk in part.chunks]
        chunks.sort(key=lambda pair: pair[0].index)
        self._chunks: list[tuple[Chunk, int]] = chunks
        self.rows = sum(chunk.rows for chunk, _ in chunks)

    def _merge_pool(self, pool: str, parts: Sequence[Part], keys: Sequence[list[Any]]) -> None:
        if len(parts) == 1:
            setattr(self, pool, keys[0])
            self._maps[0][pool] = None
            return
        numbers: dict[Any, int] = {}
        for own, maps in zip(keys, self._maps, strict=True):
            merged = [numbers.setdefault(key, len(numbers)) for key in own]
            maps[pool] = np.array([*merged, -1], dtype=np.int32)  # -1 stays -1
        setattr(self, pool, list(numbers))

    def _merged_shapes(self, number: int, part: Part) -> list[tuple[int, ...]]:
        mapping = self._maps[number]["texts"]
        if mapping is None:
            return part.shapes
        shapes = np.array(part.shapes, dtype=np.int32).reshape(-1, 4)
        return list(map(tuple, mapping[shapes].tolist()))

    def shape_table(self) -> Array:
        """(shapes + 1, 4) text numbers of dims, types, strides, concrete; the last row is -1."""
        return np.array([*self.shapes, (-1,) * 4], dtype=np.int32)

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
        if isinstance(values, Stored):
            values = values.load()
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
