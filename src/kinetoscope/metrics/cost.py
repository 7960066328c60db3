"""How many operations and bytes each kernel had to do, from the shapes of the operator behind it.

A kernel belongs to the innermost operator around its launch whose cost is known. Each operator
counts once: several kernels share its cost by their duration. Composite operators (`linear` around
`addmm`) count only when no operator of the table was recorded inside them, and the backward pass
is counted as the operators that it runs, never as a multiple of the forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.cost_args import UNKNOWN, Args, Cost, NotRecordedError, Op, parse_list
from kinetoscope.metrics.cost_kernels import distinct_rows, list_elements, looked_up
from kinetoscope.metrics.cost_ops import find_op
from kinetoscope.metrics.precision import Dtype, math_of, unit
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray, Trace

__all__ = ["KernelCosts", "kernel_costs", "op_cost"]

FloatArray = npt.NDArray[np.float64]
_SIGNATURE = ("dims_id", "types_id", "strides_id", "concrete_id")
_TABLE_SIZE = 2**20
_SPARSE = ("cusparse", "rocsparse")


@dataclass(frozen=True)
class KernelCosts:
    """Work of each kernel; arrays parallel to `rows`, all kernels in time order.

    Attributes:
        rows: event-table row of the kernel.
        op_row: row of the operator whose cost it shares, -1: none in the table.
        share: part of that operator's cost, by duration; 0 where there is no operator.
        flop: operations, a multiply-add is two; -1: unknown.
        bytes: compulsory traffic to device memory; -1: unknown.
        dtype: `Dtype` of the operator's inputs.
        math: `Math`, the peak rate that counts.
        m, n, k, batch: of a matrix product, else -1. m is the rows of the left factor.
    """

    rows: IntArray
    op_row: IntArray
    share: FloatArray
    flop: FloatArray
    bytes: FloatArray
    dtype: npt.NDArray[np.int8]
    math: npt.NDArray[np.int8]
    m: IntArray
    n: IntArray
    k: IntArray
    batch: IntArray

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """Kernels whose bytes (and, except for compiler-generated ones, FLOP) are known."""
        return self.bytes >= 0


def op_cost(op: Op, args: Args) -> Cost:
    """Cost of one call; `UNKNOWN` when the recording lacks what the formula needs."""
    try:
        return op.formula(args)
    except (NotRecordedError, IndexError, ValueError, TypeError, ZeroDivisionError, OverflowError):
        # Shapes that contradict the schema are as good as none: another version, a cut list.
        return UNKNOWN


def kernel_costs(trace: Trace) -> KernelCosts:
    """FLOP and bytes of all kernels of a trace."""
    kernels = np.flatnonzero(trace.column("kind") == Kind.KERNEL)
    table = _op_table(trace)
    owner = _owners(trace, kernels, table)
    ops, position = distinct_rows(owner, len(trace))
    owned = position >= 0
    costs, of_op = _distinct_costs(trace, kernels[owned], ops, position[owned], table=table)
    share = _shares(trace.column("dur_ns")[kernels], position, ops.size)
    values = np.array([cost[:2] for cost in costs]).reshape(-1, 2)
    gemm = np.array([cost.gemm for cost in costs], dtype=np.int64).reshape(-1, 4)
    which = np.full(kernels.size, -1, dtype=np.int64)
    which[owned] = of_op[position[owned]]
    flop, traffic = (_spread(values[:, i], which, share) for i in range(2))
    dims = [_pick(gemm[:, i], which) for i in range(4)]
    dtype = _pick(np.array([cost.dtype for cost in costs], dtype=np.int64), which, missing=0)
    matrix = _pick(np.array([cost.matrix for cost in costs], dtype=np.int64), which, missing=0)
    return KernelCosts(
        kernels,
        owner,
        share,
        flop,
        traffic,
        dtype.astype(np.int8),
        _MATH[dtype, _units(trace, kernels, position, ops.size), matrix],
        *dims,
    )


def _op_table(trace: Trace) -> dict[int, Op]:
    """Table entry of each operator name that occurs, by name id."""
    seen = np.zeros(len(trace.names), dtype=bool)
    seen[trace.column("name_id")[trace.column("kind") == Kind.CPU_OP]] = True
    found = ((int(i), find_op(trace.names[i])) for i in np.flatnonzero(seen))
    return {i: op for i, op in found if op is not None}


def _flags(trace: Trace, ids: list[int]) -> npt.NDArray[np.bool_]:
    flags = np.zeros(len(trace.names), dtype=bool)
    flags[ids] = True
    return flags


def _owners(trace: Trace, kernels: IntArray, table: dict[int, Op]) -> IntArray:
    """Row of the innermost operator with a table entry around each kernel's launch; -1: none.

    A replayed graph is launched by an operator that says nothing about its kernels; and the shape
    of a sparse matrix says nothing about the elements that it has.
    """
    name, kind, tree = trace.column("name_id"), trace.column("kind"), trace.tree
    known = _flags(trace, list(table))
    owner: IntArray = trace.links.op[kernels].copy()
    launch = trace.links.launch[kernels]
    owner[(launch >= 0) & (kind[launch] == Kind.GRAPH_LAUNCH)] = -1
    sparse = [i for i, text in enumerate(trace.names) if any(s in text for s in _SPARSE)]
    if sparse:
        owner[_flags(trace, sparse)[name[kernels]]] = -1
    todo = np.flatnonzero(owner >= 0)
    todo = todo[~known[name[owner[todo]]]]
    while todo.size:
        owner[todo] = _outer_op(trace, owner[todo])
        todo = todo[owner[todo] >= 0]
        todo = todo[~known[name[owner[todo]]]]
    composite = _flags(trace, [i for i, op in table.items() if op.composite])
    whole = np.flatnonzero(owner >= 0)
    whole = whole[composite[name[owner[whole]]]]
    if whole.size:
        inner = np.unique(owner[owner >= 0])
        inner = inner[~composite[name[inner]]]
        owner[whole[_around(trace, inner)[tree.node_of[owner[whole]]]]] = -1
    return owner


def _outer_op(trace: Trace, rows: IntArray) -> IntArray:
    """Row of the operator around each operator; -1: none."""
    tree = trace.tree
    node = tree.node_of[rows]
    parent = np.where(node >= 0, tree.parent[node], -1)
    outer = np.where(parent >= 0, tree.op[parent], -1)
    return np.where(outer >= 0, tree.rows[outer], -1)


def _around(trace: Trace, rows: IntArray) -> npt.NDArray[np.bool_]:
    """For each tree node whether it is an operator around one of these."""
    around = np.zeros(trace.tree.rows.size, dtype=bool)
    while rows.size:
        rows = _outer_op(trace, rows)
        nodes = np.unique(trace.tree.node_of[rows[rows >= 0]])
        nodes = nodes[~around[nodes]]
        around[nodes] = True
        rows = trace.tree.rows[nodes]
    return around


def _shares(dur: IntArray, position: IntArray, ops: int) -> FloatArray:
    """Part of its operator that each kernel is; equal parts when nothing took time."""
    share = np.zeros(dur.size)
    owned = position >= 0
    where = position[owned]
    total = np.bincount(where, weights=dur[owned], minlength=ops)
    count = np.bincount(where, minlength=ops)
    share[owned] = np.where(
        total[where] > 0, dur[owned] / np.maximum(total[where], 1), 1 / count[where]
    )
    return share


def _distinct_costs(
    trace: Trace, kernels: IntArray, ops: IntArray, position: IntArray, *, table: dict[int, Op]
) -> tuple[list[Cost], IntArray]:
    """Cost of each distinct set of name and arguments, and which of them each operator has."""
    name = trace.column("name_id")[ops].astype(np.int64)
    columns = {c: trace.column(c)[ops].astype(np.int64) for c in _SIGNATURE}
    columns["concrete_id"][~_flags(trace, [i for i, op in table.items() if op.concrete])[name]] = -1
    lists = _flags(trace, [i for i, op in table.items() if op.lists])[name]
    elements, element = list_elements(
        trace, kernels[lists[position]], position[lists[position]], ops.size
    )
    grids = _flags(trace, [i for i, op in table.items() if op.grid])[name]
    counts, count = looked_up(trace, kernels[grids[position]], position[grids[position]], ops.size)
    first, which = _distinct(name, *columns.values(), element, count)
    parsed: dict[int, list[Any]] = {-1: []}
    costs = []
    for i in first:
        ids = [int(column[i]) for column in columns.values()]
        for text in ids:
            if text not in parsed:
                parsed[text] = parse_list(trace.texts[text])
        dims, types, strides, concrete = (parsed[text] for text in ids)
        told = elements[element[i]], counts[count[i]]
        args = Args(dims, types, strides, concrete, *told)
        costs.append(op_cost(table[int(name[i])], args))
    return costs, which


def _distinct(*columns: IntArray) -> tuple[IntArray, IntArray]:
    """First position of each distinct combination (values >= -1), and the combination of each."""
    size = columns[0].size
    code, count = np.zeros(size, dtype=np.int64), 1
    for column in columns:
        radix = int(column.max(initial=-1)) + 2
        code = code * radix + column + 1
        # A table of all possible codes beats sorting as long as it stays in the cache.
        if count * radix <= _TABLE_SIZE:
            distinct, code = distinct_rows(code, count * radix)
        else:
            distinct, code = np.unique(code, return_inverse=True)
        count = distinct.size
    first = np.empty(count, dtype=np.int64)
    first[code[::-1]] = np.arange(size)[::-1]  # of equal codes the last write wins
    return first, code


def _units(trace: Trace, kernels: IntArray, position: IntArray, ops: int) -> IntArray:
    """Bit set of `Unit` of each kernel's operator: that of all its kernels together."""
    names, index = distinct_rows(
        trace.column("name_id")[kernels].astype(np.int64), len(trace.names)
    )
    own = np.array([unit(trace.names[i]) for i in names], dtype=np.int64)[index]
    owned = position >= 0
    of_op = np.zeros(ops, dtype=np.int64)
    np.bitwise_or.at(of_op, position[owned], own[owned])
    result = own
    result[owned] = of_op[position[owned]]
    return result


def _pick(values: IntArray, which: IntArray, missing: int = -1) -> IntArray:
    """`values` by index; `missing` where the index is -1."""
    return np.append(values, missing)[which]


def _spread(values: FloatArray, which: IntArray, share: FloatArray) -> FloatArray:
    """Each kernel's share of its operator's value; -1 stays -1."""
    whole = np.append(values, -1.0)[which]
    return np.where(whole >= 0, whole * share, -1.0)


def _math_table() -> npt.NDArray[np.int8]:
    """`math_of` as a table [dtype, units, matrix]."""
    table = np.zeros((len(Dtype), 8, 2), dtype=np.int8)
    for dtype in Dtype:
        for units in range(8):
            for matrix in (False, True):
                table[dtype, units, int(matrix)] = math_of(dtype, units, matrix=matrix)
    return table


_MATH = _math_table()
