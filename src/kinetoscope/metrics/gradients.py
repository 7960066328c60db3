"""Gradients of parameters that no optimizer updates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.cost_args import Shape, parse_list
from kinetoscope.metrics.intervals import Intervals, union
from kinetoscope.metrics.updates import update_nodes
from kinetoscope.trace.frames import is_engine_call
from kinetoscope.trace.trace import IntArray, Trace

__all__ = [
    "ACCUMULATE",
    "UnusedGradients",
    "adding",
    "backward_passes",
    "named_nodes",
    "pass_of",
    "shapes_in",
    "tails_of",
    "unused_gradients",
]

Flags = npt.NDArray[np.bool_]

ACCUMULATE = "torch::autograd::AccumulateGrad"
_ADDS = ("aten::add_", "aten::add")
_LISTS = "aten::_foreach_zero_"
_ZEROS = ("aten::zero_", "aten::fill_", "aten::zeros_like", _LISTS)
"""Operators that clear a gradient, or make an empty one to add to."""


@dataclass(frozen=True)
class UnusedGradients:
    """What the backward pass computes for parameters whose gradients nobody uses.

    Attributes:
        nodes: call-tree nodes of the additions to these gradients, by time.
        tails: host time of the end of each backward pass, after the last gradient that is used:
            all of it serves gradients that are not.
        shapes: of these gradients; no gradient that is used has one of them.
        steps: number of steps with such additions.
    """

    nodes: IntArray
    tails: Intervals
    shapes: frozenset[Shape]
    steps: int


def unused_gradients(trace: Trace) -> UnusedGradients | None:
    """Find gradients that grow from step to step while others are set anew in each.

    A gradient that was cleared is set, one that was not is added to. Where both occur in one
    program, those that are always added to belong to parameters that no optimizer clears. Parts of
    a batch add as well, but the first part sets. Parameters are told apart by their shapes.

    Returns:
        None where all gradients are used, or the recording does not tell.
    """
    nodes = named_nodes(trace, lambda name: name == ACCUMULATE)
    dims = trace.column("dims_id")[trace.tree.rows[nodes]].astype(np.int64)
    step = trace.steps.of(trace.tree.start[nodes])
    known = (dims >= 0) & (step >= 0)
    nodes, dims, step = nodes[known], dims[known], step[known]
    adds = adding(trace, nodes)
    if adds.all() or not adds.any():
        return None
    unused = ~np.isin(dims, dims[~adds])
    steps = np.unique(step[unused])
    if steps.size < 2 or not np.isin(steps, step[~adds]).all():
        return None
    handled = _handled_shapes(trace)
    if handled is None:
        return None
    wanted = np.unique(dims[unused]).tolist()
    used = [i for i in wanted if not handled.isdisjoint(shapes_in(trace.texts[i]))]
    unused &= ~np.isin(dims, used)
    if not unused.any():
        return None
    left = np.unique(dims[unused]).tolist()
    shapes = frozenset(shape for i in left for shape in shapes_in(trace.texts[i]))
    return UnusedGradients(nodes[unused], tails_of(trace, nodes, unused), shapes, int(steps.size))


def named_nodes(trace: Trace, test: Callable[[str], bool]) -> IntArray:
    """Call-tree nodes whose name passes a test, by time."""
    tree = trace.tree
    found = np.flatnonzero(tree.named(test))
    return found[np.argsort(tree.start[found], kind="stable")]


def adding(trace: Trace, nodes: IntArray) -> Flags:
    """Which of these nodes add to a gradient that is there already."""
    additions = named_nodes(trace, _ADDS.__contains__)
    return np.isin(nodes, trace.tree.parent[additions])


def shapes_in(text: str) -> list[Shape]:
    """All shapes in recorded dimensions, those of tensor lists included."""
    found: list[Shape] = []
    todo = list(parse_list(text))
    while todo:
        value = todo.pop()
        if isinstance(value, list) and value and all(type(size) is int for size in value):
            found.append(tuple(value))
        elif isinstance(value, list):
            todo.extend(value)
    return found


def _handled_shapes(trace: Trace) -> set[Shape] | None:
    """Shapes of what optimizers work on and of what is filled with zeros.

    None where zeros go to a list whose shapes were not recorded: it may hold any gradient.
    """
    tree, dims = trace.tree, trace.column("dims_id")[trace.tree.rows]
    lists = dims[named_nodes(trace, _LISTS.__eq__)].tolist()
    if any(i < 0 or not shapes_in(trace.texts[i]) for i in set(lists)):
        return None
    outer = np.where(tree.parent >= 0, tree.op[tree.parent], -1)
    zeros = [n for n in named_nodes(trace, _ZEROS.__contains__).tolist() if outer[n] < 0]
    ids = {int(dims[n]) for n in zeros if dims[n] >= 0}
    inside = update_nodes(trace) >= 0
    ids |= set(np.unique(dims[inside & (dims >= 0)]).tolist())
    return {shape for i in ids for shape in shapes_in(trace.texts[i])}


def tails_of(trace: Trace, nodes: IntArray, unused: Flags) -> Intervals:
    """From the last gradient that is used to the last that is not, in each backward pass.

    The engine works through a graph from the newest operator to the oldest, so what runs after the
    last used gradient leads to unused ones only. A pass that uses none is left alone: something
    else may want what it computes.
    """
    tree = trace.tree
    engine = trace.links.backward_root
    root = np.where(engine[nodes] >= 0, engine[nodes], nodes)
    number = pass_of(trace, root)
    start, end = [], []
    for one in np.unique(number).tolist():
        mine = number == one
        used, wasted = root[mine & ~unused], root[mine & unused]
        if used.size and wasted.size:
            start.append(int(tree.end[used].max()))
            end.append(int(tree.end[wasted].max()))
    return union(np.array(start, dtype=np.int64), np.array(end, dtype=np.int64))


def pass_of(trace: Trace, roots: IntArray) -> IntArray:
    """Number of the backward pass of each of these engine calls."""
    starts = backward_passes(trace)
    return np.searchsorted(starts, trace.tree.start[roots], side="right")


def backward_passes(trace: Trace) -> IntArray:
    """When each backward pass began, ns.

    A pass begins where a node has a newer forward operator than all of the pass before it had.
    """
    tree = trace.tree
    every = named_nodes(trace, is_engine_call)
    seq = trace.column("seq")[tree.rows[every]].astype(np.int64)
    every, seq = every[seq >= 0], seq[seq >= 0]
    begins = np.append(True, seq[1:] > np.maximum.accumulate(seq)[:-1])
    return np.asarray(tree.start[every[begins[: every.size]]])
