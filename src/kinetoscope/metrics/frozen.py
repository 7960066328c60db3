"""Modules without gradients whose input nothing in a step of training makes or brings.

An encoder that is not trained gives the same result for the same input. Whether the input is the
same, a recording does not say; that nothing can have made a new one it does, by the sizes of
tensors: a batch is copied, drawn, picked or cut out of something, or shared with what is trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from kinetoscope.metrics.cost_args import Shape
from kinetoscope.metrics.device_ops import DeviceOps, args_of
from kinetoscope.metrics.projected import may_make
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.op_names import op_rows, short_name
from kinetoscope.trace.trace import IntArray, Trace

__all__ = ["FrozenPart", "frozen_parts"]

_CUTS = frozenset("slice select narrow split split_with_sizes chunk unbind unfold".split())
"""Views that may be another part of a tensor in each step."""


@dataclass(frozen=True)
class FrozenPart:
    """A module that is called in each step without gradients, on an input of its own.

    Attributes:
        nodes: call-tree nodes of its calls.
        events: positions among the device events.
        shape: of its input.
    """

    nodes: IntArray
    events: IntArray
    shape: Shape


def frozen_parts(work: DeviceOps, least_ns: int) -> tuple[FrozenPart, ...]:
    """The parts of a training program that may well compute the same in each step.

    Args:
        work: the device events.
        least_ns: parts that take the device less than this altogether are left out.
    """
    trace, source = work.trace, work.trace.links.forward
    owner = _outermost_module(trace)
    trained = _distinct(owner[source[source >= 0]]) if owner.size else owner
    if not trained.size:
        return ()
    node = trace.links.node[work.rows]
    own = np.where((node >= 0) & ~work.backward, owner[np.maximum(node, 0)], -1)
    own[np.isin(own, trained)] = -1
    name = trace.column("name_id")[trace.tree.rows]
    first = trained[np.unique(name[trained], return_index=True)[1]]
    batches = {shape[0] for n in first.tolist() if (shape := _input(trace, owner, n))}
    calls = _distinct(own)
    inside = np.isin(owner, trained) & (trace.tree.kind == Kind.MODULE)
    calls = calls[~np.isin(name[calls], name[inside])]  # an evaluation of what is trained
    found = []
    for kind in np.unique(name[calls]).tolist():
        part = _part(work, owner, own, calls[name[calls] == kind])
        if part and work.ns[part.events].sum() >= least_ns and _of_its_own(part, batches):
            found.append(part)
    return tuple(part for part in found if _nothing_makes(work, part))


def _part(work: DeviceOps, owner: IntArray, own: IntArray, nodes: IntArray) -> FrozenPart | None:
    """Calls of one module, if there are equally many in each step, on inputs of one shape."""
    trace = work.trace
    step = trace.steps.of(trace.tree.start[nodes])
    count = np.bincount(step[step >= 0], minlength=trace.steps.count)
    if trace.steps.count < 2 or count.min() == 0 or count.min() != count.max():
        return None
    shapes = {_input(trace, owner, node) for node in nodes.tolist()}
    shape = shapes.pop()
    if shapes or not shape:
        return None
    return FrozenPart(nodes, np.flatnonzero(np.isin(own, nodes)), shape)


def _distinct(nodes: IntArray) -> IntArray:
    nodes = np.unique(nodes)
    return nodes[nodes >= 0]


def _outermost_module(trace: Trace) -> IntArray:
    """For each call-tree node the outermost module around it; -1: none."""
    tree = trace.tree
    module = tree.kind == Kind.MODULE
    around = nearest(module, tree.parent)
    above = np.where(tree.parent >= 0, around[np.maximum(tree.parent, 0)], -1)
    return nearest(module & (above < 0), tree.parent)


_BEGINNING = 64
"""Nodes of a module's call among which its first operators are."""


def _input(trace: Trace, owner: IntArray, module: int) -> Shape:
    """Shape of what the first operator of a module's call works on; () when unknown."""
    tree = trace.tree
    near = slice(module, module + _BEGINNING)
    inside = module + np.flatnonzero((owner[near] == module) & (tree.kind[near] == Kind.CPU_OP))
    for node in inside[:3].tolist():
        row = int(tree.rows[node])
        args = args_of(trace, row)
        looks_up = short_name(trace.names[trace.column("name_id")[row]]) == "embedding"
        tensors = args.tensors()[1 if looks_up else 0 :]
        if tensors and args.shape(tensors[0]):
            return args.shape(tensors[0])
    return ()


def _of_its_own(part: FrozenPart, batches: set[int]) -> bool:
    """Has its input nothing to do, by its rows, with the batches of what is trained?"""
    rows = part.shape[0]
    return rows > 1 and bool(batches) and all(rows % b and b % rows for b in batches)


def _nothing_makes(work: DeviceOps, part: FrozenPart) -> bool:
    """Can nothing outside of these calls have made, brought or cut out so many elements?"""
    elements = prod(part.shape)
    unseen = work.rows[(work.op < 0) & (work.trace.column("kind")[work.rows] == Kind.COPY)]
    if (work.trace.column("bytes")[unseen] >= elements).any():
        return False  # brought by another library than torch
    others = ~work.backward & ~work.optimizer & (work.op >= 0)
    others[part.events] = False
    for group in work.groups(np.flatnonzero(others)):
        args = args_of(work.trace, int(work.op[group[0]]))
        if may_make(work, group, args, frozenset((elements,))):
            return False
    return not _cut_out(work.trace, elements)


def _cut_out(trace: Trace, elements: int) -> bool:
    """Is a part of something larger taken outside of all modules?"""
    rows = op_rows(trace, _CUTS.__contains__)
    module = trace.tree.module[trace.tree.node_of[rows]]
    rows = rows[module < 0]
    _, first = np.unique(trace.column("dims_id")[rows], return_index=True)
    for row in rows[first].tolist():
        args = args_of(trace, row)
        size = max((args.n(i) for i in args.tensors()), default=0)
        if size > elements and size % elements == 0:
            return True
    return False
