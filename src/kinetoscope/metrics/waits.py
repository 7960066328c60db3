"""Host calls that wait for the device, and what in the program makes them wait.

A wait is named by the operator around it: reading a scalar, asking for the size of a result that
depends on data, copying to the host. A wait without an operator was written by the program
(`torch.cuda.synchronize()`) or by a library.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.activity import STRONG
from kinetoscope.trace.distributed_frames import is_fsdp_range
from kinetoscope.trace.kinds import CopyKind, Kind
from kinetoscope.trace.links import lookup, rows_of
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray, Trace


class Wait(IntEnum):
    """Why a host call waits for the device."""

    OTHER = 0
    """Inside an operator that is none of those below, a collective, the loader, a compiler."""
    SCALAR = 1
    """A few values are read on the host: `.item()`, `.tolist()`, `if tensor:`, small copies."""
    SHAPE = 2
    """The size of a result depends on data: `nonzero`, `masked_select`, `unique`, `x[mask]`."""
    EXPLICIT = 3
    """No operator asked for it: `torch.cuda.synchronize()` and its kin."""
    COPY = 4
    """A large result is copied to the host."""


SMALL_READ_BYTES = 64 * 1024
"""Smaller copies to the host are values that steer or log the program, not its output."""

_SCALAR_OPS = frozenset(("item", "_local_scalar_dense", "is_nonzero", "equal", "allclose"))
_SHAPE_OPS = frozenset(
    (
        "nonzero",
        "nonzero_numpy",
        "argwhere",
        "masked_select",
        "unique",
        "unique2",
        "_unique",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "unique_dim_consecutive",
        "repeat_interleave",
        "bincount",
        "_bincount",
        "masked_scatter",
    )
)
_COPY_OPS = frozenset(("to", "_to_copy", "copy_"))
_TO_HOST = (CopyKind.D2H_PAGEABLE, CopyKind.D2H_PINNED, CopyKind.D2H_UNKNOWN)


@dataclass(frozen=True)
class Waits:
    """Waiting calls in time order; one entry a call.

    Attributes:
        call: row of the runtime call.
        reason: `Wait`.
        op: row of the operator that asked: the outermost one of its kind (`aten::item`,
            `aten::nonzero`); the call itself where no operator did.
        copy_call: row of the call that copies to the host under the same operator; -1: none.
    """

    call: IntArray
    reason: npt.NDArray[np.int8]
    op: IntArray
    copy_call: IntArray

    def of(self, *reasons: Wait) -> Waits:
        """Those with one of these reasons."""
        return self.where(np.isin(self.reason, reasons))

    def where(self, which: npt.NDArray[np.bool_]) -> Waits:
        """Those of a mask."""
        return Waits(self.call[which], self.reason[which], self.op[which], self.copy_call[which])

    @property
    def calls(self) -> IntArray:
        """Rows of the waiting calls and of the copies that belong to them."""
        return np.unique(np.concatenate((self.call, self.copy_call[self.copy_call >= 0])))


def host_waits(trace: Trace, causes: npt.NDArray[np.int8]) -> Waits:
    """Find and classify all waiting calls of a recording.

    Args:
        trace: the recording.
        causes: `activity.node_causes` of it.
    """
    tree = trace.tree
    copies = _copies_to_host(trace)
    call = np.union1d(rows_of(trace, Kind.SYNC_CALL), _blocking(trace, copies)).astype(np.int64)
    call = call[tree.node_of[call] >= 0]
    call = call[~_last_of_all(trace, call)]
    node = tree.node_of[call]
    inner = trace.links.op[call]
    copy_call, size = _copy_under(trace, copies, inner)
    scalar = _outermost(trace, node, _op_flags(trace, _SCALAR_OPS))
    shape = _outermost(trace, node, _op_flags(trace, _SHAPE_OPS))
    small = (size >= 0) & (size < SMALL_READ_BYTES)
    reason = np.full(call.size, Wait.OTHER, dtype=np.int8)
    reason[inner < 0] = Wait.EXPLICIT
    reason[size >= 0] = Wait.COPY
    reason[small | (scalar >= 0)] = Wait.SCALAR
    reason[shape >= 0] = Wait.SHAPE
    reason[_foreign(trace, causes, node)] = Wait.OTHER
    op = np.where(scalar >= 0, tree.rows[np.maximum(scalar, 0)], _outer_copy(trace, inner))
    op = np.where(shape >= 0, tree.rows[np.maximum(shape, 0)], op)
    return Waits(call, reason, np.where(op >= 0, op, call), copy_call)


def _copies_to_host(trace: Trace) -> IntArray:
    rows = rows_of(trace, Kind.COPY)
    return rows[np.isin(trace.column("copy_kind")[rows], _TO_HOST)]


def _blocking(trace: Trace, copies: IntArray) -> IntArray:
    """Copy calls that returned only after their copy had ended: they waited themselves."""
    ts, dur = trace.column("ts_ns"), trace.column("dur_ns")
    launch = trace.links.launch[copies]
    copies, launch = copies[launch >= 0], launch[launch >= 0]
    waited = ts[launch] + dur[launch] >= ts[copies] + dur[copies]
    return np.asarray(launch[waited], dtype=np.int64)


def _last_of_all(trace: Trace, call: IntArray) -> npt.NDArray[np.bool_]:
    """Waits after which nothing is launched: the profiler itself waits when it stops."""
    work = rows_of(trace, Kind.LAUNCH, Kind.GRAPH_LAUNCH, Kind.COPY_CALL)
    ts = trace.column("ts_ns")
    last = int(ts[work].max()) if work.size else 0
    own = trace.column("kind")[call] == Kind.SYNC_CALL
    return np.asarray(own & (trace.links.op[call] < 0) & (ts[call] > last))


def _copy_under(trace: Trace, copies: IntArray, op: IntArray) -> tuple[IntArray, IntArray]:
    """Call and size of the copy to the host that the same operator issued; -1: none."""
    launch = trace.links.launch[copies]
    owner = trace.links.op[copies].astype(np.int64)
    known = (owner >= 0) & (launch >= 0)
    call = lookup(owner[known], launch[known], op)
    size = lookup(owner[known], trace.column("bytes")[copies[known]].astype(np.int64), op)
    return np.where(op >= 0, call, -1), np.where(op >= 0, size, -1)


def _op_flags(trace: Trace, names: frozenset[str]) -> npt.NDArray[np.bool_]:
    """Which call-tree nodes are operators with one of these names."""
    tree = trace.tree
    hit = trace.name_flags(lambda n: short_name(n) in names)
    named = hit[trace.column("name_id")[tree.rows]]
    return np.asarray(named & (tree.kind == Kind.CPU_OP))


def _outermost(trace: Trace, node: IntArray, flag: npt.NDArray[np.bool_]) -> IntArray:
    """The outermost flagged node on the way up from each node, itself included; -1: none."""
    parent = trace.tree.parent
    found, at = np.full(node.size, -1, dtype=np.int64), node.astype(np.int64)
    while (at >= 0).any():
        known = np.maximum(at, 0)
        found = np.where((at >= 0) & flag[known], at, found)
        at = np.where(at >= 0, parent[known], -1)
    return found


def _outer_copy(trace: Trace, op: IntArray) -> IntArray:
    """`aten::to` around `aten::_to_copy` around `aten::copy_`: the outermost of the three."""
    tree = trace.tree
    node = np.where(op >= 0, tree.node_of[np.maximum(op, 0)], -1)
    outer = _outermost(trace, node, _op_flags(trace, _COPY_OPS))
    return np.where(outer >= 0, tree.rows[np.maximum(outer, 0)], op)


def _foreign(trace: Trace, causes: npt.NDArray[np.int8], node: IntArray) -> npt.NDArray[np.bool_]:
    """Inside a loader, a compiler, a checkpoint, a collective or FSDP's rate limiter?"""
    tree = trace.tree
    flags = trace.name_flags(is_fsdp_range)
    fsdp = flags[trace.column("name_id")[tree.rows]]
    other = (tree.kind == Kind.HOST_COLLECTIVE) | fsdp
    return np.isin(causes[node], STRONG) | (_outermost(trace, node, other) >= 0)
