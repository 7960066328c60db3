"""Was what a copy carries made on the host from nothing, or is it data from outside?

The operators of the copying thread before the copy tell: a factory, and then only operators on
what the factory made. A factory may also make a constant that is applied to data (weights of a
filter, a window, noise); what the copy carries then came from outside.
"""

from __future__ import annotations

from math import prod

import numpy as np

from kinetoscope.metrics.cost_args import broadcast
from kinetoscope.metrics.device_ops import args_of
from kinetoscope.metrics.ownership import FACTORIES
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray, Trace

_CREATED_SHARE = 0.5
"""Part of the time from the factory to the copy that operators must have taken."""
_LARGER = 8
"""A tensor that is larger by this than all that a factory's can have become is another one. Less
than that a tensor grows by itself: complex numbers to real ones, twice the height and width."""
#: Operators that bring in data from outside, or pick from it: what follows is not a constant.
_FOREIGN = frozenset("lift_fresh index index_select gather select stack embedding".split())
#: Operators whose result may be much larger than what all of their arguments broadcast to.
_GROW = frozenset(
    "expand expand_as broadcast_to repeat repeat_interleave tile cat concat hstack vstack "
    "outer ger kron cartesian_prod meshgrid one_hot pad constant_pad_nd "
    "matmul mm bmm addmm baddbmm linear einsum".split()
)


def creation(trace: Trace, thread: int, low: int, high: int) -> int | None:
    """Where the factory began that made the tensor copied at `high`; None for data from outside.

    Everything that the thread's operators did between the factory and the copy must be derived
    from it, and they must be what the time went into.

    Args:
        trace: the recording.
        thread: the copying one.
        low: when it last started device work or waited for it, ns.
        high: start of the copy, ns.
    """
    rows, starts, lengths = _ops_between(trace, thread, low, high)
    names = [short_name(trace.names[i]) for i in trace.column("name_id")[rows]]
    first = next((i for i, name in enumerate(names) if name in FACTORIES), None)
    if first is None or any(name in _FOREIGN for name in names[first:]):
        return None
    begin, worked = int(starts[first]), int(lengths[first:].sum())
    if worked < _CREATED_SHARE * max(high - begin, 1):
        return None
    # More work went into something else before, and nothing of that was copied yet.
    if int(lengths[:first].sum()) > worked:
        return None
    return None if _takes_in_data(trace, rows[first:], names[first:]) else begin


def _takes_in_data(trace: Trace, rows: IntArray, names: list[str]) -> bool:
    """Does an operator take a tensor much larger than any that the factories can have led to?

    What a factory made is as large as what the next operator takes; from then on tensors grow by
    broadcasting only. Where shapes were not recorded, or something else lets tensors grow, nothing
    is known.
    """
    reach, fresh = 0, True
    for row, name in zip(rows.tolist(), names, strict=True):
        if name in _GROW:
            return False
        args = args_of(trace, row)
        shapes = [args.shape(i) for i in args.tensors()]
        largest = max(map(prod, shapes), default=0)
        made = name in FACTORIES
        if largest > _LARGER * reach and not (fresh or made):
            return True
        reach = max(reach, largest, prod(broadcast(*shapes)) if shapes else 0)
        fresh = made or (fresh and not shapes)
    return False


def _ops_between(
    trace: Trace, thread: int, low: int, high: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Outermost operators that a thread ran entirely within [low, high): row, start, length."""
    tree = trace.tree
    begin = int(np.searchsorted(tree.thread, thread, side="left"))
    stop = int(np.searchsorted(tree.thread, thread, side="right"))
    first = begin + int(np.searchsorted(tree.start[begin:stop], low, side="left"))
    last = begin + int(np.searchsorted(tree.start[begin:stop], high, side="left"))
    nodes = np.arange(first, last)
    nodes = nodes[(tree.kind[nodes] == Kind.CPU_OP) & (tree.end[nodes] <= high)]
    if nodes.size:
        reach = np.maximum.accumulate(tree.end[nodes])
        nodes = nodes[np.append(True, tree.start[nodes][1:] >= reach[:-1])]
    return tree.rows[nodes], tree.start[nodes], tree.end[nodes] - tree.start[nodes]
