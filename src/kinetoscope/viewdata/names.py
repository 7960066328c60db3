"""What boxes and frames are called, and which kind they are: decided per distinct name."""

from __future__ import annotations

import numpy as np

from kinetoscope.result.view import Name
from kinetoscope.trace.frames import is_user_file, parse_frame
from kinetoscope.trace.kinds import Family, Kind
from kinetoscope.trace.trace import IntArray, Trace

MOST_CHARACTERS = 480
"""Longer names lose their middle; C++ templates have thousands of characters."""

_KINDS = {
    Kind.PYTHON: "python",
    Kind.MODULE: "module",
    Kind.CPU_OP: "op",
    Kind.RUNTIME: "call",
    Kind.LAUNCH: "launch",
    Kind.GRAPH_LAUNCH: "launch",
    Kind.COPY_CALL: "copy_call",
    Kind.SYNC_CALL: "sync",
    Kind.ALLOC_CALL: "call",
    Kind.FREE_CALL: "call",
    Kind.ANNOTATION: "range",
    Kind.LOADER: "loader",
    Kind.COMPILE: "range",
    Kind.GC: "range",
    Kind.HOST_COLLECTIVE: "collective_call",
    Kind.COLLECTIVE: "collective",
    Kind.COPY: "copy",
    Kind.MEMSET: "copy",
}
_FAMILIES = {
    Family.GEMM: "gemm",
    Family.CONV: "gemm",
    Family.RNN: "gemm",
    Family.FFT: "gemm",
    Family.ATTENTION: "attention",
    Family.ELEMENTWISE: "elementwise",
    Family.FUSED: "elementwise",
    Family.RANDOM: "elementwise",
    Family.COPY: "elementwise",
    Family.LAYOUT: "elementwise",
    Family.REDUCTION: "reduction",
    Family.NORM: "reduction",
    Family.SOFTMAX: "reduction",
    Family.POOL: "reduction",
    Family.OPTIMIZER: "optimizer",
}


def shorten(text: str, limit: int = MOST_CHARACTERS) -> str:
    """Return text without its middle when it is longer than `limit`."""
    if len(text) <= limit:
        return text
    head = (limit - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def kind_word(kind: int, family: int = 0, name: str = "") -> str:
    """Return the word of `BOX_KINDS` for an event; `name` tells the user's frames from others."""
    if kind == Kind.KERNEL:
        return _FAMILIES.get(Family(family), "kernel")
    if kind == Kind.PYTHON and name:
        frame = parse_frame(name)
        return "user" if frame is not None and is_user_file(frame.file) else "python"
    return _KINDS.get(Kind(kind), "other")


class NamePool:
    """Gives each (text, kind) a number."""

    def __init__(self) -> None:
        self._index: dict[tuple[str, str], int] = {}

    def add(self, text: str, kind: str) -> int:
        """Return the number of a name."""
        return self._index.setdefault((shorten(text), kind), len(self._index))

    def of_rows(self, trace: Trace, rows: IntArray) -> IntArray:
        """Return the number of each row's name."""
        if rows.size == 0:
            return np.empty(0, dtype=np.int64)
        key = (
            (trace.column("name_id")[rows].astype(np.int64) << 16)
            | (trace.column("kind")[rows].astype(np.int64) << 8)
            | trace.column("family")[rows].astype(np.int64)
        )
        distinct, position = np.unique(key, return_inverse=True)
        numbers = [self._number(trace, int(k)) for k in distinct]
        return np.array(numbers, dtype=np.int64)[position]

    def _number(self, trace: Trace, key: int) -> int:
        name = trace.names[key >> 16] if key >= 0 else "?"
        return self.add(name, kind_word(key >> 8 & 255, key & 255, name))

    def names(self) -> tuple[Name, ...]:
        """Return all names by number."""
        return tuple(Name(text, kind) for text, kind in self._index)
