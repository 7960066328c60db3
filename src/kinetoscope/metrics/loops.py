"""Loops of the Python program over small operators: the same sequence of calls again and again.

Only the operators that Python calls count, not those inside them. Two calls are the same when
operator and module instance are the same: the layers of a network are different instances and so
no loop; a cell that is called for every time step is one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.device_ops import args_of, dense
from kinetoscope.metrics.precision import Dtype
from kinetoscope.metrics.updates import update_nodes
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray, Trace

MIN_REPEATS = 4
"""Shorter repetitions are no loop worth the name."""
_MOST_PERIODS = 24
_LONGEST_BODY = 4096
_NOT_PROGRAM = (Kind.LOADER, Kind.COMPILE, Kind.HOST_COLLECTIVE, Kind.GC)
_SLICES = {"select": (2,), "slice": (2, 3), "narrow": (2, 3), "index": (), "unbind": (), "roll": ()}
"""Operators that take a part of a tensor, and the arguments that say which part."""


@dataclass(frozen=True)
class Loop:
    """One loop; times in ns.

    Attributes:
        nodes: call-tree nodes of all operators that Python called, in order.
        body: how many of them one iteration has.
        thread: host thread.
        starts: start of each iteration.
        end: end of the last one.
    """

    nodes: IntArray
    body: int
    thread: int
    starts: IntArray
    end: int

    @property
    def repeats(self) -> int:
        """Number of iterations."""
        return int(self.starts.size)

    def position(self, offset: int) -> IntArray:
        """Nodes of the operator at one place of the body, one an iteration."""
        return self.nodes[offset :: self.body][: self.repeats]


def find_loops(trace: Trace) -> tuple[Loop, ...]:
    """Loops of at least `MIN_REPEATS` equal iterations within a step, shortest bodies first."""
    nodes, key = _called_by_python(trace)
    if nodes.size < 2 * MIN_REPEATS:
        return ()
    free = np.ones(nodes.size, dtype=bool)
    loops = []
    for period in _periods(key):
        same = np.append(key[period:] == key[:-period], np.zeros(period, dtype=bool))
        for first, length in _runs(same, period * (MIN_REPEATS - 1)):
            stop = first + (length + period) // period * period
            if not free[first:stop].all():
                continue
            free[first:stop] = False
            loops.append(_loop(trace, nodes[first:stop], period))
    return tuple(loops)


def _loop(trace: Trace, nodes: IntArray, body: int) -> Loop:
    tree = trace.tree
    return Loop(
        nodes=nodes,
        body=body,
        thread=int(tree.thread[nodes[0]]),
        starts=tree.start[nodes[::body]],
        end=int(tree.end[nodes].max()),
    )


def _called_by_python(trace: Trace) -> tuple[IntArray, IntArray]:
    """Operators without an operator around them, and a number for step, operator and module."""
    tree = trace.tree
    if tree.rows.size == 0:
        return tree.rows, tree.rows
    name = trace.column("name_id")[tree.rows].astype(np.int64)
    chosen = tree.outer_ops & (trace.links.backward_root < 0)
    chosen &= nearest(np.isin(tree.kind, _NOT_PROGRAM), tree.parent) < 0
    chosen &= update_nodes(trace) < 0
    nodes = np.flatnonzero(chosen)
    module = tree.module[nodes]
    instance = np.where(module >= 0, name[np.maximum(module, 0)], -1)
    step = np.searchsorted(trace.steps.edges, tree.start[nodes], side="right")
    return nodes, dense([tree.thread[nodes], step.astype(np.int64), name[nodes], instance])


def _periods(key: IntArray) -> list[int]:
    """Distances at which operators recur, the usual ones, ascending."""
    order = np.argsort(key, kind="stable")
    gap = np.diff(order)[np.diff(key[order]) == 0]
    gap = gap[(gap > 0) & (gap <= _LONGEST_BODY)]
    if gap.size == 0:
        return []
    found, counts = np.unique(gap, return_counts=True)
    # An operator that occurs twice in the body recurs at two distances whose sum is the period.
    enough = counts >= MIN_REPEATS - 1
    found, counts = found[enough], counts[enough]
    usual = found[np.argsort(-counts * found, kind="stable")[:_MOST_PERIODS]]
    return sorted(int(p) for p in usual)


def _runs(flags: npt.NDArray[np.bool_], least: int) -> list[tuple[int, int]]:
    """Start and length of each run of true values of at least this length."""
    edges = np.diff(np.concatenate(([False], flags, [False])).astype(np.int8))
    first, stop = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    long = stop - first >= least
    return [(int(a), int(b - a)) for a, b in zip(first[long], stop[long], strict=True)]


# --- what the body of a loop does ----------------------------------------------------------------


@dataclass(frozen=True)
class Body:
    """What one iteration does.

    Attributes:
        names: short names of the operators, in order.
        modules: names of the modules around them.
        slices: takes a different part of a tensor in each iteration.
        matrix: the part is of a tensor of at least two dimensions.
        cell: a step of a recurrent network.
        products: number of matrix products and convolutions.
        batch_one: most products have a first dimension of 1.
        generates: picks a token and embeds it again.
        decides: the host or the data decide what comes next: it reads a value, draws a sample, or
            takes the elements that a mask selects.
    """

    names: tuple[str, ...]
    modules: tuple[str, ...]
    slices: bool
    matrix: bool
    cell: bool
    products: int
    batch_one: bool
    generates: bool
    decides: bool


PRODUCTS = {
    "linear": 0,
    "matmul": 0,
    "mm": 0,
    "bmm": 0,
    "addmm": 1,
    "baddbmm": 1,
    "mv": 0,
    "conv1d": 0,
    "conv2d": 0,
    "conv3d": 0,
    "convolution": 0,
    "_convolution": 0,
    "einsum": 0,
    "_transformer_encoder_layer_fwd": 0,
    "_native_multi_head_attention": 0,
}
"""Matrix products and convolutions, whole layers that torch runs as one operator (without
gradients), and the position of their input."""
_CELLS = frozenset({"lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"})
_PICKS = frozenset({"argmax", "multinomial", "topk", "sort", "max"})
_DECIDES = frozenset(
    "item _local_scalar_dense is_nonzero multinomial nonzero masked_select unique_dim "
    "_unique2 bernoulli".split()
)
_GATES = frozenset({"tanh", "sigmoid", "tanh_", "sigmoid_"})


def describe(trace: Trace, loop: Loop) -> Body:
    """What one iteration of a loop does."""
    tree = trace.tree
    first = loop.nodes[: loop.body]
    name_id = trace.column("name_id")
    names = tuple(short_name(trace.names[name_id[tree.rows[n]]]) for n in first)
    modules = tuple(
        dict.fromkeys(trace.names[name_id[tree.rows[m]]] for m in tree.module[first] if m >= 0)
    )
    parts = [i for i, name in enumerate(names) if name in _SLICES and _varies(trace, loop, i)]
    ranks = [_rank(trace, int(first[i])) for i in parts]
    products = [i for i, name in enumerate(names) if name in PRODUCTS]
    ones = [_first_dim(trace, int(first[i]), PRODUCTS[names[i]]) == 1 for i in products]
    cell = bool(_CELLS & set(names)) or any(m.rpartition("_")[0].endswith("Cell") for m in modules)
    cell |= bool(_GATES & set(names)) and bool(products) and bool(parts)
    return Body(
        names=names,
        modules=modules,
        slices=bool(parts) or _unbound(trace, loop),
        matrix=any(rank >= 2 for rank in ranks) or _unbound(trace, loop),
        cell=cell,
        products=len(products),
        batch_one=bool(ones) and sum(ones) >= 0.7 * len(ones),
        generates="embedding" in names and bool(_PICKS & set(names)),
        decides=bool(_DECIDES & set(names)) or _selects_by_mask(trace, first, names),
    )


def _varies(trace: Trace, loop: Loop, offset: int) -> bool:
    """Does the operator take a different part in each iteration?

    Without recorded values (before 2.1) a short body is taken at its word.
    """
    places = _SLICES[short_name(_name(trace, int(loop.nodes[offset])))]
    if not places:
        return False
    rows = trace.tree.rows[loop.position(offset)]
    ids = trace.column("concrete_id")[rows]
    if (ids < 0).any():
        return loop.body <= 12
    values = {_part(trace, int(row), places) for row in rows[:64]}
    return len(values) >= max(3, min(loop.repeats, 64) // 4)


def _selects_by_mask(trace: Trace, nodes: IntArray, names: tuple[str, ...]) -> bool:
    """`where(mask)` with nothing but a mask gives indices, as `nonzero` does."""
    alone = (nodes[i] for i, name in enumerate(names) if name == "where")
    return any(len(args_of(trace, int(trace.tree.rows[n])).dims) == 1 for n in alone)


def _name(trace: Trace, node: int) -> str:
    return trace.names[int(trace.column("name_id")[trace.tree.rows[node]])]


def _part(trace: Trace, row: int, places: tuple[int, ...]) -> tuple[str, ...]:
    args = args_of(trace, row)
    return tuple(args.text(i) for i in places)


def _rank(trace: Trace, node: int) -> int:
    dims = args_of(trace, int(trace.tree.rows[node])).dims
    return len(dims[0]) if dims and isinstance(dims[0], list) else 0


def _first_dim(trace: Trace, node: int, position: int) -> int:
    args = args_of(trace, int(trace.tree.rows[node]))
    if position >= len(args.dims) or args.dtype(position) is Dtype.UNKNOWN:
        return 0
    shape = args.dims[position]
    return int(shape[0]) if isinstance(shape, list) and shape and type(shape[0]) is int else 0


def _unbound(trace: Trace, loop: Loop) -> bool:
    """Was a tensor taken apart right before the loop, into as many parts as there are iterations?

    That is what `for row in tensor` does.
    """
    tree = trace.tree
    low = max(int(loop.nodes[0]) - 40, 0)
    for node in range(int(loop.nodes[0]) - 1, low, -1):
        if tree.kind[node] != Kind.CPU_OP or tree.thread[node] != loop.thread:
            continue
        if short_name(_name(trace, node)) == "unbind":
            args = args_of(trace, int(tree.rows[node]))
            shape = args.dims[0] if args.dims and isinstance(args.dims[0], list) else []
            axis = int(args.text(1)) if args.text(1).lstrip("-").isdigit() else 0
            return -len(shape) <= axis < len(shape) and abs(shape[axis] - loop.repeats) <= 1
    return False


__all__ = ["MIN_REPEATS", "PRODUCTS", "Body", "Loop", "describe", "find_loops"]
