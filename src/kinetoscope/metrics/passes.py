"""Calls of a program's model, and how often a step runs it forward and backward."""

from __future__ import annotations

import numpy as np

from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray, Trace


def model_calls(trace: Trace) -> IntArray:
    """Nodes of the calls of the module that is called most, not inside another module."""
    tree = trace.tree
    if tree.rows.size == 0:
        return tree.rows
    above = np.where(tree.parent >= 0, tree.module[np.maximum(tree.parent, 0)], -1)
    nodes = np.flatnonzero((tree.kind == Kind.MODULE) & (above < 0))
    if nodes.size == 0:
        return nodes
    name = trace.column("name_id")[tree.rows[nodes]].astype(np.int64)
    time = np.bincount(name, weights=tree.end[nodes] - tree.start[nodes])
    return np.asarray(nodes[name == int(time.argmax())], dtype=np.int64)


def passes_per_step(trace: Trace) -> float:
    """Calls of the model in a step that a backward pass follows before the next call.

    More than one is gradient accumulation over parts of a batch, or several updates in a step.
    """
    calls = model_calls(trace)
    roots = np.unique(trace.links.backward_root)
    backward = np.sort(trace.tree.start[roots[roots >= 0]])
    if not calls.size or not backward.size:
        return 0.0
    calls = calls[np.argsort(trace.tree.start[calls])]
    upto = np.append(trace.tree.start[calls][1:], np.iinfo(np.int64).max)
    began = np.searchsorted(backward, upto) - np.searchsorted(backward, trace.tree.end[calls])
    return float((began > 0).sum()) / max(trace.steps.count, 1)
