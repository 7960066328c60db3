"""What one process has read of a file: chunks of columns, and the pools that they index."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from kinetoscope.trace.readers._repair import Repairs

Array = npt.NDArray[Any]
Lane = tuple[Any, Any, Any, Any]
MEMORY_FIELDS = 8
"""Numbers of a memory event."""


@dataclass(frozen=True)
class Stored:
    """A column that a worker left in a file."""

    file: BinaryIO
    offset: int
    dtype: str
    rows: int

    def load(self) -> Array:
        """The values."""
        self.file.seek(self.offset)
        values = np.empty(self.rows, dtype=self.dtype)
        self.file.readinto(values.data)  # type: ignore[attr-defined]
        return values


@dataclass
class Chunk:
    """The columns of one piece; a column that is missing is -1 throughout."""

    index: int
    rows: int
    columns: dict[str, Array] | dict[str, Stored]


@dataclass
class Part:
    """Everything from one decoder.

    Attributes:
        lanes: (pid, tid, args.device, args.stream), as written.
        shapes: the four text numbers (dims, types, strides, concrete) of each shape.
        memory: a row of (ts, lane, bytes, addr, device, allocated, reserved, failed) per memory
            event; failed is 1 for an `[OutOfMemory]` instant, whose time may be `NO_TIME`.
        metadata: (kind, pid, tid, text) of each `M` event.
        open_pairs: `B` and `E` events; they never leave their process.
    """

    chunks: list[Chunk] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    categories: list[str] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    memory: Array = field(default_factory=lambda: np.empty((0, MEMORY_FIELDS), dtype=np.int64))
    metadata: list[tuple[str, Any, Any, str]] = field(default_factory=list)
    open_pairs: list[Any] = field(default_factory=list)
    repairs: Repairs = field(default_factory=Repairs)


def int_array(values: Iterable[int]) -> Array:
    """int64 of whole numbers of any size; those beyond 64 bit signed are wrapped."""
    numbers = list(values)
    try:
        return np.array(numbers, dtype=np.int64)
    except OverflowError:
        return np.array([wrap64(number) for number in numbers], dtype=np.int64)


def wrap64(value: int) -> int:
    """An id of any size as signed 64 bit two's complement, so that equal ids stay equal."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    return value - (1 << 64) if value >> 63 else value
