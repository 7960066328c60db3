"""Gradients that are cleared before any optimizer has used them.

Two networks that are trained in turns (a generator and its critic) share their backward passes: the
loss of one is differentiated through the other as well, unless something detaches them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinetoscope.metrics.cost_args import Shape, parse_list
from kinetoscope.metrics.gradients import (
    ACCUMULATE,
    Flags,
    UnusedGradients,
    adding,
    named_nodes,
    pass_of,
    shapes_in,
    tails_of,
)
from kinetoscope.metrics.updates import update_nodes
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray, Trace

__all__ = ["discarded_gradients"]

_OF_WEIGHTS = frozenset(
    "t transpose linear addmm mm matmul bmm baddbmm conv1d conv2d conv3d convolution _convolution "
    "conv_transpose1d conv_transpose2d conv_transpose3d batch_norm layer_norm group_norm "
    "instance_norm rms_norm native_batch_norm embedding to _to_copy prelu detach".split()
)
"""Operators of a forward pass that take a weight. Whatever else takes a tensor of its shape may
take its gradient: a norm, a copy that is kept, the first step of a method with two."""


@dataclass(frozen=True)
class _Updates:
    """The steps of all optimizers.

    Attributes:
        end: of each, ns, ascending; the begin may be that of a closure with the backward pass.
        shapes: what each works on; None where the recording does not tell.
        node: nearest step around each call-tree node; -1: none.
    """

    end: IntArray
    shapes: list[frozenset[Shape] | None]
    node: IntArray

    @property
    def known(self) -> frozenset[Shape]:
        return frozenset().union(*(shapes for shapes in self.shapes if shapes is not None))

    def between(self, start: int, end: int) -> list[frozenset[Shape] | None]:
        """What the steps in a stretch of time work on."""
        low, high = np.searchsorted(self.end, (start, end)).tolist()
        return self.shapes[low:high]


@dataclass(frozen=True)
class _Turn:
    """All gradients of one shape in one backward pass: when, which nodes, added to older ones?"""

    at: int
    nodes: IntArray
    adds: bool
    sets: bool


def discarded_gradients(trace: Trace) -> UnusedGradients | None:
    """Find gradients that the next pass sets anew although no optimizer used them in between.

    Where an optimizer's list of tensors was not recorded, it uses what was set since its last step,
    but nothing that was added to gradients it had used before: those were stale.

    Returns:
        None where the ends of the backward passes lead to no such gradient.
    """
    nodes = named_nodes(trace, lambda name: name == ACCUMULATE)
    dims = trace.column("dims_id")[trace.tree.rows[nodes]].astype(np.int64)
    nodes, dims = nodes[dims >= 0], dims[dims >= 0]
    adds = adding(trace, nodes)
    if not adds.any() or adds.all():
        return None
    updates = _updates(trace)
    if updates.end.size < 2:
        return None
    number = _pass_of(trace, nodes)
    wasted = np.zeros(nodes.size, dtype=bool)
    for shape_id in np.unique(dims).tolist():
        turns = _turns(trace, np.flatnonzero(dims == shape_id), nodes, number, adds)
        shapes = shapes_in(trace.texts[shape_id])
        for turn in _discarded(trace, turns, shapes[0], updates) if shapes else ():
            wasted[turn.nodes] = True
    wasted |= _alike(dims, number, adds, wasted)
    tails = tails_of(trace, nodes, wasted)
    if not tails[0].size:
        return None
    steps = np.unique(trace.steps.of(trace.tree.start[nodes[wasted]]))
    return UnusedGradients(nodes[wasted], tails, frozenset(), int((steps >= 0).sum()) or 1)


def _alike(dims: IntArray, number: IntArray, adds: Flags, wasted: Flags) -> Flags:
    """Gradients of shapes that both networks have, in passes where the addition tells them apart.

    There all discarded gradients are added to stale ones, and all that are used are set.
    """
    found = np.zeros(dims.size, dtype=bool)
    for one in np.unique(number[wasted]).tolist():
        mine = number == one
        both = np.intersect1d(dims[mine & adds], dims[mine & ~adds])
        mixed = np.isin(dims, both)
        if adds[mine & wasted].all() and not adds[mine & ~wasted & ~mixed].any():
            found |= mine & mixed & adds
    return found


def _pass_of(trace: Trace, nodes: IntArray) -> IntArray:
    engine = trace.links.backward_root
    return pass_of(trace, np.where(engine[nodes] >= 0, engine[nodes], nodes))


def _updates(trace: Trace) -> _Updates:
    tree, inside = trace.tree, update_nodes(trace)
    steps = np.unique(inside[inside >= 0])
    steps = steps[np.argsort(tree.end[steps], kind="stable")]
    shapes = [_used(trace, tree.rows[inside == step]) for step in steps.tolist()]
    return _Updates(tree.end[steps], shapes, inside)


def _used(trace: Trace, rows: IntArray) -> frozenset[Shape] | None:
    """Shapes that these operators work on; None where a list of tensors was left out."""
    columns = [trace.column(c)[rows].astype(np.int64) for c in ("dims_id", "types_id")]
    found: set[Shape] = set()
    for dims, types in np.unique(np.stack(columns), axis=1).T.tolist():
        if dims < 0:
            continue
        first = parse_list(trace.texts[types])[:1] if types >= 0 else []
        # Lists of more than 30 tensors are recorded as empty ones.
        if first == ["TensorList"] and parse_list(trace.texts[dims])[:1] == [[]]:
            return None
        found.update(shapes_in(trace.texts[dims]))
    return frozenset(found) or None


def _turns(
    trace: Trace, mine: IntArray, nodes: IntArray, number: IntArray, adds: Flags
) -> list[_Turn]:
    found = []
    for one in np.unique(number[mine]).tolist():
        which = mine[number[mine] == one]
        at = int(trace.tree.start[nodes[which]].min())
        found.append(_Turn(at, which, bool(adds[which].all()), not adds[which].any()))
    return found


def _discarded(trace: Trace, turns: list[_Turn], shape: Shape, updates: _Updates) -> list[_Turn]:
    """The turns after which the gradient is set anew without having been used."""
    if shape not in updates.known and None not in updates.shapes:
        return []
    found: list[_Turn] = []
    for i in range(len(turns) - 2, -1, -1):
        turn, following = turns[i], turns[i + 1]
        lost = following.sets or (following.adds and found[-1:] == [following])
        stale = turn.adds and i > 0 and bool(updates.between(turns[i - 1].at, turn.at))
        used = any(
            shape in shapes if shapes is not None else not stale
            for shapes in updates.between(turn.at, following.at)
        )
        if lost and not used and not _read(trace, shape, turn.at, following.at, updates):
            found.append(turn)
    return found


def _read(trace: Trace, shape: Shape, start: int, end: int, updates: _Updates) -> bool:
    """Does anything but a forward pass or an optimizer take a tensor of this shape?"""
    tree = trace.tree
    inside = (tree.start > start) & (tree.start < end) & (tree.kind == Kind.CPU_OP)
    inside &= (updates.node < 0) & (trace.links.backward_root < 0)
    node = np.flatnonzero(inside)
    outer = np.where(tree.parent[node] >= 0, tree.op[tree.parent[node]], -1)
    rows = tree.rows[node[outer < 0]]
    dims, name = trace.column("dims_id")[rows], trace.column("name_id")[rows]
    pairs = np.unique(np.stack([dims, name.astype(dims.dtype)]), axis=1).T.tolist()
    return any(
        d >= 0
        and short_name(trace.names[n]) not in _OF_WEIGHTS
        and shape in shapes_in(trace.texts[d])
        for d, n in pairs
    )
