"""Which function is behind allocations that stay: the one that called for all of them."""

from __future__ import annotations

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.result import Location
from kinetoscope.trace.trace import IntArray

_MOST = 200
"""Allocations whose stacks are compared: the largest ones."""


def places(analysis: Analysis, rows: IntArray, weights: IntArray) -> tuple[Location, ...]:
    """The innermost function that all of them have in common, then those that allocated most.

    What is kept alive is usually the graph behind one tensor. Its parts were allocated in many
    modules; the function that called them all is the one that holds the result.
    """
    allocated = analysis.locations(rows, weights)
    shared = _shared_frame(analysis, rows[np.argsort(-weights, kind="stable")[:_MOST]])
    if shared < 0:
        return allocated
    first = analysis.locations(np.array([shared]), np.array([int(weights.sum())]))
    seen = {(p.file, p.function) for p in first}
    return (*first, *(p for p in allocated if (p.file, p.function) not in seen))[:3]


def _shared_frame(analysis: Analysis, rows: IntArray) -> int:
    """Row of the innermost user frame that occurs in every stack; -1: none."""
    chains = [chain for chain in (_chain(analysis, int(row)) for row in rows) if chain]
    if not chains:
        return -1
    names = analysis.trace.column("name_id")
    tree = analysis.trace.tree
    shared = -1
    for frames in zip(*chains, strict=False):
        ids = {int(names[tree.rows[node]]) for node in frames}
        if len(ids) > 1:
            break
        shared = int(tree.rows[frames[0]])
    return shared


def _chain(analysis: Analysis, row: int) -> list[int]:
    """User frames around an event, outermost first; those of the forward for the backward."""
    tree = analysis.trace.tree
    node = int(analysis.locator.nodes(np.array([row]))[0])
    chain = []
    node = int(tree.user_frame[node]) if node >= 0 else -1
    while node >= 0:
        chain.append(node)
        parent = int(tree.parent[node])
        node = int(tree.user_frame[parent]) if parent >= 0 else -1
    return chain[::-1]
