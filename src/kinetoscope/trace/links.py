"""Which call launched a device event, which operator issued it, which forward made a backward.

Correlation ids join launches with device events; operators are joined by containment of the
call, then by `External id`. The two are different id spaces that may hold the same numbers, so
they are never mixed.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from kinetoscope.trace.calltree import CallTree, nearest
from kinetoscope.trace.frames import is_engine_call
from kinetoscope.trace.kinds import DEVICE_WORK, RUNTIME_KINDS, Kind
from kinetoscope.trace.trace import IntArray, Trace


def rows_of(trace: Trace, *kinds: Kind) -> IntArray:
    """Rows of the event table with one of these kinds, in time order."""
    of_kind = [trace.rows_by_kind[kind] for kind in kinds if kind in trace.rows_by_kind]
    if len(of_kind) == 1:
        return of_kind[0]
    return np.sort(np.concatenate(of_kind)) if of_kind else np.empty(0, dtype=np.int64)


def lookup(keys: IntArray, values: IntArray, wanted: IntArray) -> IntArray:
    """`values` at the first entry of `keys` equal to each of `wanted`; -1 where there is none."""
    if keys.size == 0 or wanted.size == 0:
        return np.full(wanted.size, -1, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    position = np.searchsorted(keys, wanted, sorter=order)
    found = order[np.minimum(position, keys.size - 1)]
    return np.where(keys[found] == wanted, values[found], -1)


class Links:
    """Row to row connections of one trace; every array is indexed by event-table row."""

    def __init__(self, trace: Trace, tree: CallTree) -> None:
        self._trace = trace
        self._tree = tree

    @cached_property
    def launch(self) -> IntArray:
        """Row of the runtime call that issued a device event; -1: not recorded.

        When a runtime call and the driver call inside it carry the same correlation, the one
        that came first (the outer one) counts.
        """
        corr = self._trace.column("corr")
        calls = rows_of(self._trace, *RUNTIME_KINDS)
        calls = calls[corr[calls] >= 0]
        device = rows_of(self._trace, *DEVICE_WORK)
        device = device[corr[device] >= 0]
        result = np.full(len(self._trace), -1, dtype=np.int64)
        result[device] = lookup(corr[calls].astype(np.int64), calls, corr[device].astype(np.int64))
        return result

    @cached_property
    def node(self) -> IntArray:
        """Call-tree node an event hangs on: its own, or that of its launch; -1: unknown."""
        launch = self.launch
        own = self._tree.node_of
        return np.where(own >= 0, own, np.where(launch >= 0, own[launch], -1))

    @cached_property
    def op(self) -> IntArray:
        """Row of the operator that issued a runtime call or device event; -1: unknown."""
        tree, trace = self._tree, self._trace
        node = self.node
        # The last entry stands for "none": a recording may have no host events at all.
        op_node = np.append(tree.op, -1)[node]
        result: IntArray = np.append(tree.rows, -1)[op_node]
        ext = trace.column("ext_id")
        missing = np.flatnonzero((result < 0) & (ext > 0))
        if missing.size:
            ops = rows_of(trace, Kind.CPU_OP)
            ops = ops[ext[ops] > 0]
            result[missing] = lookup(ext[ops].astype(np.int64), ops, ext[missing].astype(np.int64))
        return result

    @cached_property
    def backward_root(self) -> IntArray:
        """Node of the autograd-engine call around each node; -1: not backward."""
        trace, tree = self._trace, self._tree
        flags = trace.name_flags(is_engine_call)
        return nearest(flags[trace.column("name_id")[tree.rows]], tree.parent)

    @cached_property
    def forward(self) -> IntArray:
        """For each node in backward, the node of the forward operator it belongs to; else -1.

        Several forward operators may carry one sequence number; the last one made the node.
        """
        trace, tree = self._trace, self._tree
        seq = trace.column("seq")[tree.rows]
        backward = self.backward_root
        forward_nodes = np.flatnonzero((seq >= 0) & (backward < 0))
        result = np.full(tree.rows.size, -1, dtype=np.int64)
        inside = np.flatnonzero(backward >= 0)
        if not forward_nodes.size or not inside.size:
            return result
        order = np.argsort(tree.start[forward_nodes], kind="stable")[::-1]
        forward_nodes = forward_nodes[order]
        carrier = nearest(seq >= 0, tree.parent)[inside]
        own = np.where(carrier >= 0, seq[carrier], -1)
        # The engine's own event has no number in some versions; its child has.
        roots = backward[inside]
        best = np.full(tree.rows.size, -1, dtype=np.int64)
        np.maximum.at(best, roots, own)
        result[inside] = lookup(
            seq[forward_nodes].astype(np.int64), forward_nodes, best[roots].astype(np.int64)
        )
        result[inside[best[roots] < 0]] = -1
        return result

    @cached_property
    def source_node(self) -> IntArray:
        """For each node the node whose Python stack explains it: in backward the forward's."""
        own = np.arange(self._tree.rows.size)
        return np.where(self.forward >= 0, self.forward, own)
