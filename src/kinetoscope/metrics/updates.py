"""Where optimizers update parameters: inside `Optimizer.step`, after the closure that it may get.

`step(closure)` runs the closure first, and Lightning gives each optimizer one that holds the whole
forward and backward pass. What runs before the last backward pass of a step ends is the closure's.
"""

from __future__ import annotations

import numpy as np

from kinetoscope.metrics.intervals import Intervals, union
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.frames import is_engine_call, is_optimizer_step
from kinetoscope.trace.trace import IntArray, Trace


def update_nodes(trace: Trace) -> IntArray:
    """For each call-tree node the step whose update it belongs to; -1: none.

    Of steps inside of each other the innermost counts.
    """
    tree = trace.tree
    steps = tree.named(is_optimizer_step)
    marks = np.flatnonzero(steps)
    around = nearest(steps, tree.parent)
    begin = np.zeros(tree.rows.size, dtype=np.int64)
    begin[marks] = _begins(trace, marks)
    belongs = (around >= 0) & (tree.start >= begin[np.maximum(around, 0)])
    belongs[marks] = True
    return np.asarray(np.where(belongs, around, -1), dtype=np.int64)


def update_time(trace: Trace) -> Intervals:
    """When parameters are updated, ns."""
    marks = np.flatnonzero(trace.tree.named(is_optimizer_step))
    return union(_begins(trace, marks), trace.tree.end[marks])


def _begins(trace: Trace, marks: IntArray) -> IntArray:
    """When the update of each of these steps begins: with the step, or after its closure."""
    tree = trace.tree
    start, end = tree.start[marks], tree.end[marks]
    engine = np.flatnonzero(tree.named(is_engine_call))
    if not engine.size:
        return np.asarray(start)
    engine = engine[np.argsort(tree.start[engine], kind="stable")]
    done = np.maximum.accumulate(tree.end[engine])
    last = np.searchsorted(tree.start[engine], end) - 1
    inside = (last >= 0) & (tree.start[engine[np.maximum(last, 0)]] >= start)
    return np.where(inside, np.minimum(done[np.maximum(last, 0)], end), start)
