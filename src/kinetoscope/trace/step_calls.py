"""Steps from stacks: the calls by which the program repeats its outermost unit of work.

A server's requests, or the iterations of a loop without marks, are calls of one function that
follow one another in the frame that runs the loop. What repeats inside one of them (tiles, tokens,
layers) is a part of it, so the outermost repetition counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray, Trace

_MOST_OF_THE_WORK = 0.8
"""Part of a thread's operators and launches that the repeated calls must hold."""
_ALIKE = 4.0
"""No call does more than this many times the usual work: else it is another kind of call."""
_WRAPPERS = 40
"""Frames of a decorator (`no_grad`) before the function itself."""
_WORK = (Kind.CPU_OP, Kind.LAUNCH, Kind.GRAPH_LAUNCH, Kind.COPY_CALL)
_CALLS = (Kind.PYTHON, Kind.MODULE)


@dataclass(frozen=True)
class Calls:
    """Repeated calls, in time order.

    Attributes:
        start, end: of each call, ns.
        name: the function or module that is called, for people.
        thread: host thread.
    """

    start: IntArray
    end: IntArray
    name: str
    thread: int


def repeated_calls(trace: Trace) -> Calls | None:
    """The outermost calls of one function that hold nearly all of the work; None: no such calls.

    The search goes down from the root as long as a single call holds the work, and ends at a
    module: what repeats inside a model are its parts.
    """
    tree = trace.tree
    work = np.isin(tree.kind, _WORK)
    if not work.any() or not np.isin(tree.kind, _CALLS).any():
        return None
    thread = int(np.bincount(tree.thread[work]).argmax())
    mine = np.flatnonzero((tree.thread == thread) & np.isin(tree.kind, _CALLS))
    moments = tree.start[work & (tree.thread == thread)]
    weight = np.searchsorted(moments, tree.end[mine]) - np.searchsorted(moments, tree.start[mine])
    mine, weight = mine[weight > 0], weight[weight > 0]
    names = trace.column("name_id")[tree.rows[mine]].astype(np.int64)
    above, least = tree.parent[mine], _MOST_OF_THE_WORK * moments.size
    node = -1
    while True:
        children = np.flatnonzero(above == node)
        sums = np.bincount(names[children], weights=weight[children], minlength=1)
        if sums.max() < least:
            return None
        calls = children[names[children] == int(sums.argmax())]
        if calls.size > 1:
            return _calls(trace, mine[calls], weight[calls])
        node = int(mine[calls[0]])
        if tree.kind[node] == Kind.MODULE:
            return None


def _calls(trace: Trace, nodes: IntArray, weight: IntArray) -> Calls | None:
    if weight.max() > _ALIKE * np.median(weight):
        return None
    tree = trace.tree
    return Calls(
        tree.start[nodes], tree.end[nodes], _label(trace, int(nodes[0])), int(tree.thread[nodes[0]])
    )


def _label(trace: Trace, node: int) -> str:
    """The user's function that is called, be it through a decorator; else the call itself."""
    tree, name_id = trace.tree, trace.column("name_id")
    for inner in range(node, min(node + _WRAPPERS, tree.rows.size)):
        if tree.start[inner] > tree.end[node] or tree.kind[inner] == Kind.MODULE:
            break
        index = int(name_id[tree.rows[inner]])
        frame = tree.frames.get(index) if tree.kind[inner] == Kind.PYTHON else None
        if frame is not None and index in tree.user_name_ids:
            return frame.function
    return trace.names[int(name_id[tree.rows[node]])]


__all__ = ["Calls", "repeated_calls"]
