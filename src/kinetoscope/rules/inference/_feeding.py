"""Does a program feed the answer of one call of its model to the next one?"""

from __future__ import annotations

from math import prod

import numpy as np

from kinetoscope.metrics.cost_args import Shape
from kinetoscope.metrics.device_ops import args_of
from kinetoscope.metrics.loops import PRODUCTS, Loop
from kinetoscope.trace.kinds import Family, Kind
from kinetoscope.trace.op_names import op_family, short_name
from kinetoscope.trace.trace import Trace


def feeds_itself(trace: Trace, queue: Loop) -> bool:
    """Does the program work on a tensor of the input's shape between two calls?

    Then the next input probably comes from the last answer (a rollout, a sampler), and there is no
    queue to batch. What takes one value or one part out of such a tensor makes no input of it. A
    model may read something else first (a time, a condition): what it joins to a tensor of the
    same shape between two calls counts if it is the shape of any input.
    """
    tree = trace.tree
    if queue.repeats < 2:
        return False
    if _keeps_state(trace, queue):
        return True
    first = _products(trace, queue.thread, int(queue.starts[0]), int(queue.starts[1]))
    later = _products(trace, queue.thread, int(queue.starts[1]), int(queue.end))
    if not first or not later:
        return False
    fed = _input_of(trace, *first[0])
    ops = _between(trace, queue, int(tree.end[first[-1][0]]), int(tree.start[later[0][0]]))
    ops = [n for n in ops if not _shrinks(trace, n)]
    read = [_shapes(trace, n) for n in ops]
    if fed and any(fed in shapes for shapes in read):
        return True
    others = _other_inputs(trace, first)
    return any(shapes.count(shape) >= 2 for shapes in read for shape in others)


_TAKES = frozenset("select slice narrow unsqueeze unbind index index_select to copy_".split())
"""What makes a request out of a tensor with many of them, or brings one to the device."""


def _between(trace: Trace, queue: Loop, low: int, high: int) -> list[int]:
    """Operators between the last product of the first call and the first one of the second.

    Where the calls are those of a module, what the second one does itself is left out, and also
    what the first one does, if something takes the next request before the second one.
    """
    tree = trace.tree
    call = int(queue.nodes[0])
    module = tree.kind[call] == Kind.MODULE
    ops = called(trace, queue.thread, low, int(queue.starts[1]) if module else high)
    ops = [n for n in ops if tree.start[n] >= low]
    after = [n for n in ops if tree.start[n] >= tree.end[call]]
    taken = module and any(_op_name(trace, n) in _TAKES for n in after)
    return after if taken else ops


_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell"})
_NEW_STATE = frozenset({"zeros", "new_zeros", "zeros_like", "full"})


def _keeps_state(trace: Trace, queue: Loop) -> bool:
    """Does a recurrent layer go on from a state that the call before left?

    A layer that is given no state makes one of zeros, in each call.
    """
    ops = called(trace, queue.thread, int(queue.starts[0]), int(queue.starts[1]))
    names = [_op_name(trace, node) for node in ops]
    recurrent = next((i for i, name in enumerate(names) if name in _RECURRENT), -1)
    return recurrent >= 0 and not _NEW_STATE & set(names[:recurrent])


def _op_name(trace: Trace, node: int) -> str:
    return short_name(trace.names[trace.column("name_id")[trace.tree.rows[node]]])


def _input_of(trace: Trace, node: int, position: int) -> Shape:
    """Shape of a product's input; () where it was not recorded."""
    args = args_of(trace, int(trace.tree.rows[node]))
    return args.shape(position) if args.is_tensor(position) else ()


def _shapes(trace: Trace, node: int) -> list[Shape]:
    args = args_of(trace, int(trace.tree.rows[node]))
    return [args.shape(i) for i in args.tensors()]


def _other_inputs(trace: Trace, products: list[tuple[int, int]]) -> set[Shape]:
    """Shapes that products of one call read and nothing before them in the call may have made."""
    tree = trace.tree
    start, end = int(tree.start[products[0][0]]), int(tree.end[products[-1][0]])
    thread = int(tree.thread[products[0][0]])
    position = dict(products)
    earlier: list[tuple[int, list[Shape]]] = []
    found: set[Shape] = set()
    for node in called(trace, thread, start, end):
        shape = _input_of(trace, node, position[node]) if node in position else ()
        if shape and not any(_may_make(n in position, tensors, shape) for n, tensors in earlier):
            found.add(shape)
        earlier.append((node, _shapes(trace, node)))
    return found


def _may_make(product: bool, tensors: list[Shape], shape: Shape) -> bool:
    """May an operator that reads these tensors have a result, or an input, of this shape?

    A product's result has the length of one of its weight's dimensions.
    """
    if shape in tensors:
        return True
    if product:
        return any(n in shape for tensor in tensors[1:2] for n in tensor if n > 1)
    return any(prod(tensor) % max(prod(shape), 1) == 0 for tensor in tensors)


def _shrinks(trace: Trace, node: int) -> bool:
    """Is the result of an operator smaller than what it works on?"""
    name = _op_name(trace, node)
    return name == "select" or op_family(name) == Family.REDUCTION


def _products(trace: Trace, thread: int, low: int, high: int) -> list[tuple[int, int]]:
    """Nodes of the products that Python called in this time, with their input's position."""
    found = ((n, _op_name(trace, n)) for n in called(trace, thread, low, high))
    return [(n, PRODUCTS[name]) for n, name in found if name in PRODUCTS]


def called(trace: Trace, thread: int, low: int, high: int) -> list[int]:
    """Nodes of the operators that Python called on a thread in this time."""
    tree = trace.tree
    first = int(np.searchsorted(tree.thread, thread, side="left"))
    stop = int(np.searchsorted(tree.thread, thread, side="right"))
    start = first + int(np.searchsorted(tree.start[first:stop], low, side="left"))
    end = first + int(np.searchsorted(tree.start[first:stop], high, side="left"))
    nodes = np.arange(start, end)
    above = np.where(tree.parent[nodes] >= 0, tree.op[np.maximum(tree.parent[nodes], 0)], -1)
    return [int(n) for n in nodes[(tree.kind[nodes] == Kind.CPU_OP) & (above < 0)]]
