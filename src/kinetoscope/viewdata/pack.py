"""Integer arrays as byte planes that compress well; see `kinetoscope.result.view.Column`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kinetoscope.result.view import Column

IntArray = npt.NDArray[np.int64]


def pack(values: npt.ArrayLike, *, delta: bool = False) -> Column:
    """Return integers as a column."""
    array = np.asarray(values, dtype=np.int64)
    if delta and array.size:
        array = np.diff(array, prepend=np.int64(0))
    signed = bool(array.size and array.min() < 0)
    if signed:
        array = np.where(array >= 0, array << 1, ~(array << 1))
    top = int(array.max(initial=0))
    width = (top.bit_length() + 7) // 8
    planes = array.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width]
    return Column(array.size, width, delta, signed, np.ascontiguousarray(planes.T).tobytes())


def unpack(column: Column) -> IntArray:
    """Return the integers of a column: the inverse of `pack`."""
    raw = np.zeros((column.size, 8), dtype=np.uint8)
    planes = np.frombuffer(column.data, dtype=np.uint8).reshape(column.width, column.size)
    raw[:, : column.width] = planes.T
    values = raw.view("<u8").reshape(-1).astype(np.int64)
    if column.signed:
        values = np.where(values & 1, ~(values >> 1), values >> 1)
    return np.cumsum(values) if column.delta else values
