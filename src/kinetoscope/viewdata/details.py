"""One line about a box beyond its name: an operator's shapes, a copy's size, a launch's grid."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from kinetoscope import units
from kinetoscope.analysis import Analysis
from kinetoscope.trace.kinds import CopyKind, Kind
from kinetoscope.trace.trace import IntArray, Trace
from kinetoscope.viewdata.boxes import BoolArray, Boxes
from kinetoscope.viewdata.idle import IdleStretches
from kinetoscope.viewdata.names import shorten

MOST_TEXTS = 6_000
_LONGEST = 200

COPY_WORDS = {
    CopyKind.H2D_PAGEABLE: "host (pageable) to device",
    CopyKind.H2D_PINNED: "host (pinned) to device",
    CopyKind.H2D_UNKNOWN: "host to device",
    CopyKind.D2H_PAGEABLE: "device to host (pageable)",
    CopyKind.D2H_PINNED: "device to host (pinned)",
    CopyKind.D2H_UNKNOWN: "device to host",
    CopyKind.D2D: "within the device",
    CopyKind.P2P: "device to device",
    CopyKind.H2H: "host to host",
    CopyKind.UNKNOWN: "direction not recorded",
    CopyKind.NONE: "memset",
}


class Details:
    """Collects the lines of a page; beyond `MOST_TEXTS` the rest has none."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def texts(self) -> tuple[str, ...]:
        """All lines by number."""
        return tuple(self._index)

    def of(self, analysis: Analysis, boxes: Boxes, idle: IdleStretches) -> IntArray:
        """Number of the line of each box, -1: none."""
        result = np.full(len(boxes), -1, dtype=np.int64)
        trace = analysis.trace
        single = (boxes.event >= 0) & (boxes.count == 1)
        event = np.maximum(boxes.event, 0)
        kind = np.where(single, trace.column("kind")[event], -1) if len(trace) else event
        copies = np.isin(kind, (Kind.COPY, Kind.MEMSET))
        size = trace.column("bytes")[event] if len(trace) else event
        direction = trace.column("copy_kind")[event] if len(trace) else event
        key = (np.maximum(size, 0) << 8) | direction
        self._write(result, copies & (size >= 0), key, _copy_line)
        kernels = np.isin(kind, (Kind.KERNEL, Kind.COLLECTIVE))
        self._pooled(result, trace, kernels, event, "launch_id", _launch_line)
        self._pooled(result, trace, kind == Kind.CPU_OP, event, "dims_id", _dims_line)
        stretch = -2 - boxes.event
        during = (
            np.where(boxes.event < -1, idle.row[np.clip(stretch, 0, None)], -1)
            if (idle.row.size)
            else np.full(len(boxes), -1)
        )
        name = trace.column("name_id")[np.maximum(during, 0)] if len(trace) else during
        self._write(
            result, during >= 0, name.astype(np.int64), lambda n: f"the host in {trace.names[n]}"
        )
        return result

    def _pooled(
        self,
        result: IntArray,
        trace: Trace,
        mask: BoolArray,
        event: IntArray,
        column: str,
        line: Callable[[str], str],
    ) -> None:
        ids = trace.column(column)[event].astype(np.int64) if len(trace) else event
        self._write(result, mask & (ids >= 0), ids, lambda i: line(trace.texts[i]))

    def _write(
        self,
        result: IntArray,
        mask: BoolArray,
        key: IntArray,
        line: Callable[[int], str],
    ) -> None:
        """Give the masked boxes the line of their key; the most frequent keys first."""
        if not mask.any():
            return
        distinct, position, counts = np.unique(key[mask], return_inverse=True, return_counts=True)
        numbers = np.full(distinct.size, -1, dtype=np.int64)
        for i in np.argsort(-counts, kind="stable"):
            if len(self._index) >= MOST_TEXTS:
                break
            text = shorten(line(int(distinct[i])), _LONGEST)
            if text:
                numbers[i] = self._index.setdefault(text, len(self._index))
        result[mask] = numbers[position]


def _copy_line(key: int) -> str:
    return f"{units.size(key >> 8)} {COPY_WORDS[CopyKind(key & 255)]}"


def _dims_line(text: str) -> str:
    """`[[64, 128], [128, 256], []]` -> `64 x 128, 128 x 256`."""
    try:
        dims = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return ""
    if not isinstance(dims, list):
        return ""
    shapes = [" x ".join(str(n) for n in dim) for dim in dims if isinstance(dim, list) and dim]
    return f"shapes {', '.join(shapes)}" if shapes else ""


def _launch_line(text: str) -> str:
    try:
        values = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return ""
    if not isinstance(values, list) or len(values) < 6:
        return ""
    grid, block, _, registers, shared, occupancy = values[:6]
    parts = []
    if isinstance(grid, list) and isinstance(block, list):
        parts.append(f"grid {' x '.join(map(str, grid))}, block {' x '.join(map(str, block))}")
    if isinstance(registers, int):
        parts.append(f"{registers} registers a thread")
    if isinstance(shared, int):
        parts.append(f"{units.size(shared)} shared memory")
    # A driver that cannot tell writes 0; a kernel that runs has some.
    if isinstance(occupancy, int | float) and occupancy > 0:
        parts.append(f"estimated occupancy {occupancy:.0f} %")
    return ", ".join(parts)
