"""What a recording holds of our own capture: its threads, and the frames that started the program.

The threads wait while the program works; the frames stand above all of it. Neither is part of it.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from kinetoscope.trace.trace import IntArray, Trace

_WORK = re.compile(r"kinetoscope[/\\]capture[/\\]\w+\.py\(\d+\): _work$")

_START = re.compile(r"kinetoscope[/\\]capture[/\\]program\.py\(\d+\): run$")


def own_threads(trace: Trace) -> npt.NDArray[np.bool_]:
    """Which of the trace's threads our capture ran; never the one with the steps."""
    tree = trace.tree
    own = np.zeros(max(len(trace.threads), 1), dtype=bool)
    names = [i for i, name in enumerate(trace.names) if _WORK.search(name)]
    own[tree.thread[np.isin(trace.column("name_id")[tree.rows], names)]] = True
    if trace.steps.thread >= 0:
        own[trace.steps.thread] = False
    return own


def own_frames(trace: Trace) -> npt.NDArray[np.bool_]:
    """Which nodes of the call tree are frames between the interpreter's start and the program's."""
    tree = trace.tree
    own = np.zeros(tree.rows.size, dtype=bool)
    names = [i for i, name in enumerate(trace.names) if _START.search(name)]
    starts = np.flatnonzero(np.isin(trace.column("name_id")[tree.rows], names))
    for first in starts:
        above = int(first)
        while above >= 0 and not own[above]:
            own[above] = True
            above = int(tree.parent[above])
    return own


def parents_without(parent: IntArray, left_out: npt.NDArray[np.bool_]) -> IntArray:
    """The parent of each node when some nodes with all their ancestors are left out; -1: none."""
    return np.where((parent >= 0) & left_out[np.maximum(parent, 0)], -1, parent)
