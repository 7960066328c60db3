"""Copies between host and device, the calls behind them, and what each one is for.

A copy to the device is one of: the way back of a *round trip*; a tensor that the program *created*
on the host by an operator that the device has as well; *data*, which came from outside. Small
copies are constants. A rule about copies takes its own kind, so that one copy has one cause.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.created import creation
from kinetoscope.metrics.intervals import Intervals, union
from kinetoscope.metrics.ownership import (
    LARGE_COPY_BYTES,
    LONG_WORK_NS,
    SMALL_INPUT_BYTES,
    TO_DEVICE,
    TO_HOST,
    copy_op_names,
    round_trips,
)
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.kinds import CopyKind, Kind
from kinetoscope.trace.links import lookup, rows_of
from kinetoscope.trace.trace import IntArray, Trace

PAGEABLE = (CopyKind.H2D_PAGEABLE, CopyKind.D2H_PAGEABLE)
_STARTS_WORK = (Kind.LAUNCH, Kind.GRAPH_LAUNCH, Kind.COPY_CALL, Kind.SYNC_CALL)
_CREATED_BYTES = 4 * 1024
"""Smaller tensors are scalars and index lists, whatever made them."""


class Purpose(IntEnum):
    """What a copy to the device is for."""

    SMALL = 0
    DATA = 1
    CREATED = 2
    ROUND_TRIP = 3
    TO_HOST = 4
    """Not a copy to the device."""


@dataclass(frozen=True)
class Transfers:
    """Copies between host and device in time order, one entry each.

    Attributes:
        row: the device event.
        call: its launch; -1: not recorded.
        sync: the call after it in which the host waits for it to end; -1: none.
        op: outermost operator around the call (`aten::to`); -1: unknown.
        bytes, ns: size and duration on the device.
        kind: direction and host memory.
        purpose: what it is for.
        asked: whether the operator exists to copy, rather than to send its arguments along.
        work_start: where the host work that made the data begins: after the thread's last call
            that started device work or waited for it; for a created tensor at its factory.
        work_end: start of the copy's operator.
    """

    row: IntArray
    call: IntArray
    sync: IntArray
    op: IntArray
    bytes: IntArray
    ns: IntArray
    kind: npt.NDArray[np.int64]
    purpose: npt.NDArray[np.int64]
    asked: npt.NDArray[np.bool_]
    work_start: IntArray
    work_end: IntArray

    def of(self, *purposes: Purpose) -> npt.NDArray[np.bool_]:
        """Which entries have one of these purposes."""
        return np.isin(self.purpose, purposes)

    @property
    def made(self) -> npt.NDArray[np.bool_]:
        """Small copies after so much host work that it must have made what they carry."""
        long = self.work_end - self.work_start >= LONG_WORK_NS
        small = self.of(Purpose.SMALL) & (self.bytes >= SMALL_INPUT_BYTES)
        return np.asarray(long & small & self.asked)

    def calls(self, which: npt.NDArray[np.bool_]) -> IntArray:
        """Rows of the copy calls and the synchronisations after them."""
        rows = np.concatenate((self.call[which], self.sync[which]))
        return np.unique(rows[rows >= 0])


def transfers(trace: Trace) -> Transfers:
    """All copies between host and device of a recording."""
    rows = rows_of(trace, Kind.COPY)
    kind = trace.column("copy_kind")[rows].astype(np.int64)
    rows = rows[np.isin(kind, (*TO_DEVICE, *TO_HOST))]
    kind = trace.column("copy_kind")[rows].astype(np.int64)
    nbytes = np.maximum(trace.column("bytes")[rows], 0)
    call = trace.links.launch[rows]
    op = _outer_op(trace, call)
    start, end = _work(trace, call, op)
    asked = _asked(trace, op)
    purpose = np.where(nbytes >= LARGE_COPY_BYTES, Purpose.DATA, Purpose.SMALL).astype(np.int64)
    back = [second for _, second in round_trips(trace)]
    for i in np.flatnonzero(np.isin(kind, TO_DEVICE) & (nbytes >= _CREATED_BYTES) & (call >= 0)):
        thread = int(trace.column("thread")[call[i]])
        factory = creation(trace, thread, int(start[i]), int(end[i]))
        if factory is not None:
            purpose[i], start[i] = Purpose.CREATED, factory
    purpose[np.isin(rows, back)] = Purpose.ROUND_TRIP
    purpose[np.isin(kind, TO_HOST)] = Purpose.TO_HOST
    return Transfers(
        row=rows,
        call=call,
        sync=_sync_after(trace, call),
        op=op,
        bytes=nbytes,
        ns=trace.column("dur_ns")[rows],
        kind=kind,
        purpose=purpose,
        asked=asked,
        work_start=start,
        work_end=end,
    )


def outer_ops(trace: Trace) -> IntArray:
    """For each call-tree node the outermost operator of the chain of operators around it."""
    tree = trace.tree
    is_op = tree.kind == Kind.CPU_OP
    above = np.where(tree.parent >= 0, is_op[np.maximum(tree.parent, 0)], False)
    return nearest(is_op & ~above, tree.parent)


def extent_of(trace: Trace, rows: IntArray) -> Intervals:
    """Union of the intervals of these rows; negative rows are ignored."""
    rows = rows[rows >= 0]
    ts = trace.column("ts_ns")[rows]
    return union(ts, ts + trace.column("dur_ns")[rows])


def _outer_op(trace: Trace, call: IntArray) -> IntArray:
    node = np.where(call >= 0, trace.tree.node_of[np.maximum(call, 0)], -1)
    if not (node >= 0).any():
        return np.full(call.size, -1, dtype=np.int64)
    top = np.where(node >= 0, outer_ops(trace)[np.maximum(node, 0)], -1)
    return np.where(top >= 0, trace.tree.rows[np.maximum(top, 0)], -1)


def _asked(trace: Trace, op: IntArray) -> npt.NDArray[np.bool_]:
    name = trace.column("name_id")[np.maximum(op, 0)] if len(trace) else op
    return np.asarray((op < 0) | copy_op_names(trace)[name])


def _sync_after(trace: Trace, call: IntArray) -> IntArray:
    """The synchronisation that the same operator makes after its copy."""
    syncs = rows_of(trace, Kind.SYNC_CALL)
    sync_op = trace.links.op[syncs]
    syncs, sync_op = syncs[sync_op >= 0], sync_op[sync_op >= 0]
    op = np.where(call >= 0, trace.links.op[np.maximum(call, 0)], -1)
    found = lookup(sync_op.astype(np.int64), syncs, op.astype(np.int64))
    ts = trace.column("ts_ns")
    later = ts[np.maximum(found, 0)] >= ts[np.maximum(call, 0)]
    return np.where((op >= 0) & (found >= 0) & later, found, -1)


def _work(trace: Trace, call: IntArray, op: IntArray) -> tuple[IntArray, IntArray]:
    """Host time before each copy in which its thread neither started device work nor waited."""
    ts, dur, thread = (trace.column(c) for c in ("ts_ns", "dur_ns", "thread"))
    end = np.where(op >= 0, ts[np.maximum(op, 0)], ts[np.maximum(call, 0)])
    start = end.copy()
    others = rows_of(trace, *_STARTS_WORK)
    first = trace.steps.start
    for index in np.unique(thread[call[call >= 0]]):
        mine = np.flatnonzero((call >= 0) & (thread[np.maximum(call, 0)] == index))
        calls = others[thread[others] == index]
        at = np.searchsorted(ts[calls], end[mine], side="left") - 1
        before = calls[np.maximum(at, 0)]
        start[mine] = np.where(at >= 0, ts[before] + dur[before], min(first, int(end[mine].min())))
    return np.minimum(start, end), end
