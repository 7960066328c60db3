"""Frames that ran already when the recording began.

Torch gives such a frame the line that it stood at, not the first line of its function: for the
loop over the steps mostly the line that started the profiler.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray, Trace

_AT_ONCE_NS = 100_000
"""The frames that run are noted one after the other, some us each."""
_MOST = 0.9
"""Part of its thread's recording that such a frame lasts."""


def running_frames(trace: Trace) -> npt.NDArray[np.bool_]:
    """Which call-tree nodes are frames that ran before and lasted: loops over steps."""
    tree = trace.tree
    running = np.zeros(tree.rows.size, dtype=bool)
    python = np.flatnonzero(tree.kind == Kind.PYTHON)
    for mine in _by_thread(tree.thread[python], python):
        start, end = tree.start[mine], tree.end[mine]
        first, last = start.min(), end.max()
        early = start - first <= _AT_ONCE_NS
        running[mine] = early & (end - start >= _MOST * (last - first))
    return running


def _by_thread(thread: IntArray, nodes: IntArray) -> list[IntArray]:
    return [nodes[thread == one] for one in np.unique(thread)]
