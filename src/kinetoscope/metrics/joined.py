"""Loops whose results are put together again: `torch.stack([head(x) for head in heads])`.

The list that is joined proves that the iterations are independent of one another, which a
sequence of equal operators alone does not. Module instances may differ: parallel heads and
experts are as good a loop as a call of one function.
"""

from __future__ import annotations

import numpy as np

from kinetoscope.metrics.cost import op_cost
from kinetoscope.metrics.cost_ops import find_op
from kinetoscope.metrics.device_ops import args_of, dense
from kinetoscope.metrics.loops import PRODUCTS, Loop
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray, Trace

__all__ = ["joined_products"]

_JOINS = frozenset({"stack", "cat", "hstack", "vstack", "concat"})
_LONG_LIST = 31
"""Lists from this length on are recorded without their shapes."""
_MOST_OPS = 4096


def joined_products(trace: Trace, *, least: int, max_flop: float) -> tuple[Loop, ...]:
    """Loops over small products whose results are joined.

    Args:
        trace: one rank.
        least: iterations at least.
        max_flop: FLOP of one product at most; operators without a known cost count as small.
    """
    nodes, short, key = _outermost(trace)
    loops = []
    for at in [i for i, name in enumerate(short) if name in _JOINS]:
        loop = _before(trace, nodes, short, key, at)
        if loop is not None and loop.repeats >= least and _small(trace, loop, max_flop):
            loops.append(loop)
    return tuple(loops)


def _outermost(trace: Trace) -> tuple[IntArray, list[str], IntArray]:
    """Operators without one around them: nodes, short names, a number for equal calls."""
    tree = trace.tree
    chosen = tree.outer_ops.copy()
    if tree.rows.size:
        chosen &= trace.links.backward_root < 0
    nodes = np.flatnonzero(chosen)
    rows = tree.rows[nodes]
    names = trace.column("name_id")[rows].astype(np.int64)
    distinct, which = np.unique(names, return_inverse=True)
    words = [short_name(trace.names[i]) for i in distinct]
    step = np.searchsorted(trace.steps.edges, tree.start[nodes], side="right").astype(np.int64)
    dims = trace.column("dims_id")[rows].astype(np.int64)
    key = dense([names, dims, step, tree.thread[nodes]]) if nodes.size else names
    return nodes, [words[i] for i in which], key


def _before(trace: Trace, nodes: IntArray, short: list[str], key: IntArray, at: int) -> Loop | None:
    """The loop whose results are joined by operator `at`."""
    args = args_of(trace, int(trace.tree.rows[nodes[at]]))
    if not args.types or args.types[0] != "TensorList":
        return None
    shapes = args.dims[0] if args.dims and isinstance(args.dims[0], list) else []
    last = next((i for i in range(at - 1, max(at - 13, -1), -1) if short[i] in PRODUCTS), -1)
    if last < 0:
        return None
    low = max(at - _MOST_OPS, 0)
    same = np.flatnonzero(key[low : last + 1] == key[last]) + low
    gaps = np.diff(same)
    if gaps.size == 0 or at - last > gaps[-1] + 2:
        return None
    period = int(gaps[-1])
    other = np.flatnonzero(gaps != period)
    repeats = int(same.size - (other[-1] + 1 if other.size else 0))
    if shapes and repeats > len(shapes):
        repeats = len(shapes)
    if repeats < (len(shapes) or _LONG_LIST):
        return None
    first = int(same[-repeats])
    stop = min(first + repeats * period, at)
    mine = nodes[first:stop]
    return Loop(
        nodes=mine,
        body=period,
        thread=int(trace.tree.thread[mine[0]]),
        starts=trace.tree.start[nodes[same[-repeats:]]],
        end=int(trace.tree.end[mine].max()),
    )


def _small(trace: Trace, loop: Loop, max_flop: float) -> bool:
    row = int(trace.tree.rows[loop.nodes[0]])
    op = find_op(trace.names[int(trace.column("name_id")[row])])
    return op is None or op_cost(op, args_of(trace, row)).flop <= max_flop
