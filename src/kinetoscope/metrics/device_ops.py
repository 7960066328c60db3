"""What each device event was launched for: operator, shapes, forward or backward, optimizer or not.

Rules about kernels ask the same questions of the same rows; this answers them once per trace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.cost_args import Args, parse_list
from kinetoscope.metrics.updates import update_nodes
from kinetoscope.trace.kinds import DEVICE_WORK, Family
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray, Trace

Flags = npt.NDArray[np.bool_]
_SIGNATURE = ("name_id", "dims_id", "types_id", "strides_id", "concrete_id")


@dataclass(frozen=True)
class DeviceOps:
    """One entry per device event, in time order.

    Attributes:
        rows: event-table rows.
        ns: durations.
        family: kernel family; NONE for copies and memsets.
        op: row of the operator that launched it; -1: unknown.
        call: row of the runtime call that launched it; -1: not recorded.
        backward: launched by the autograd engine.
        optimizer: launched inside an optimizer's step.
        anchor: call-tree node whose stack explains it (in backward the forward's); -1: unknown.
        stream: lane of the device.
    """

    trace: Trace
    rows: IntArray
    ns: IntArray
    family: npt.NDArray[np.uint8]
    op: IntArray
    call: IntArray
    backward: Flags
    optimizer: Flags
    anchor: IntArray
    stream: IntArray

    @property
    def at(self) -> IntArray:
        """Start of each event's launch, ns; -1 where it was not recorded."""
        return self._of_call("ts_ns")

    @property
    def thread_of_call(self) -> IntArray:
        """Thread of each event's launch; -1 where it was not recorded."""
        return self._of_call("thread")

    def _of_call(self, column: str) -> IntArray:
        values = self.trace.column(column)[np.maximum(self.call, 0)].astype(np.int64)
        return np.where(self.call >= 0, values, -1)

    @cached_property
    def args_key(self) -> IntArray:
        """Events with equal keys were launched by equal calls: same operator, shapes and types."""
        trace, op = self.trace, np.maximum(self.op, 0)
        columns = [trace.column(c)[op].astype(np.int64) for c in _SIGNATURE]
        return np.asarray(np.where(self.op >= 0, dense(columns), -1), dtype=np.int64)

    @cached_property
    def _op_names(self) -> tuple[tuple[str, ...], IntArray]:
        """Distinct short operator names, and the position of each event's among them."""
        names = self.trace.names
        ids = np.where(self.op >= 0, self.trace.column("name_id")[np.maximum(self.op, 0)], -1)
        distinct, position = np.unique(ids, return_inverse=True)
        return tuple(short_name(names[i]) if i >= 0 else "" for i in distinct), position

    def op_name(self, index: int) -> str:
        """Short operator name of one event, "" when unknown."""
        names, position = self._op_names
        return names[int(position[index])]

    @cached_property
    def op_names(self) -> npt.NDArray[np.object_]:
        """Short operator name of each event, "" when unknown."""
        names, position = self._op_names
        return np.array(names, dtype=object)[position] if names else np.empty(0, dtype=object)

    def by_op_name(self, test: Callable[[str], bool]) -> Flags:
        """Events whose short operator name passes a test, asked once for each distinct name."""
        names, position = self._op_names
        return np.fromiter((test(name) for name in names), bool, len(names))[position]

    def groups(self, which: IntArray) -> list[IntArray]:
        """Positions of `which`, grouped by equal calls."""
        if which.size == 0:
            return []
        order = np.argsort(self.args_key[which], kind="stable")
        keys = self.args_key[which][order]
        return np.split(which[order], np.flatnonzero(np.diff(keys)) + 1)

    def named(self, *names: str) -> Flags:
        """Events whose operator has one of these short names."""
        return self.by_op_name(frozenset(names).__contains__)

    def of_family(self, *families: Family) -> Flags:
        """Events of these kernel families."""
        return np.isin(self.family, families)


def device_ops(trace: Trace) -> DeviceOps:
    """The device events of a trace with their operators."""
    rows = rows_of(trace, *DEVICE_WORK)
    tree, links = trace.tree, trace.links
    node = links.node[rows]
    safe = np.maximum(node, 0)
    known = node >= 0
    if tree.rows.size:
        backward = known & (links.backward_root[safe] >= 0)
        optimizer = known & (update_nodes(trace)[safe] >= 0)
        anchor = np.where(known, links.source_node[safe], -1)
    else:
        backward = optimizer = np.zeros(rows.size, dtype=bool)
        anchor = np.full(rows.size, -1, dtype=np.int64)
    family = trace.column("family")[rows]
    return DeviceOps(
        trace=trace,
        rows=rows,
        ns=trace.column("dur_ns")[rows],
        family=family,
        op=links.op[rows],
        call=links.launch[rows],
        backward=backward,
        optimizer=optimizer | (family == Family.OPTIMIZER),
        anchor=anchor,
        stream=trace.column("thread")[rows].astype(np.int64),
    )


def args_of(trace: Trace, row: int) -> Args:
    """The recorded arguments of an operator; empty where they were not recorded."""

    def text(column: str) -> list[object]:
        index = int(trace.column(column)[row]) if row >= 0 else -1
        return parse_list(trace.texts[index]) if index >= 0 else []

    return Args(text("dims_id"), text("types_id"), text("strides_id"), text("concrete_id"))


def largest_tensor(args: Args) -> tuple[int, ...]:
    """Shape of the largest tensor argument; () when none is known."""
    shapes = [args.shape(i) for i in args.tensors()]
    return max(shapes, key=prod, default=())


def dense(columns: list[IntArray]) -> IntArray:
    """One number for each distinct combination of values."""
    result = np.zeros(columns[0].size, dtype=np.int64)
    for column in columns:
        low = column - min(int(column.min(initial=0)), 0)
        combined = result * (int(low.max(initial=0)) + 1) + low
        result = np.unique(combined, return_inverse=True)[1].astype(np.int64)
    return result


__all__ = ["DeviceOps", "args_of", "dense", "device_ops", "largest_tensor"]
