"""Whose Python a long stretch between the launches is: the program's or torch's own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Coverage, Intervals, union
from kinetoscope.metrics.stretches import launching_threads
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.frames import is_torch_file
from kinetoscope.trace.kinds import Kind

MOSTLY = 0.5
"""A stretch belongs to the one whose Python fills at least this part of it."""


def program_share(analysis: Analysis, long: Intervals) -> npt.NDArray[np.float64]:
    """Part of each stretch in which the innermost Python function is not one of torch's."""
    trace, tree, activity = analysis.trace, analysis.trace.tree, analysis.activity
    torch_names = [i for i, frame in tree.frames.items() if frame and is_torch_file(frame.file)]
    name = trace.column("name_id")[tree.rows]
    known = np.isin(name, [i for i, frame in tree.frames.items() if frame])
    frame = nearest(known & (tree.kind == Kind.PYTHON), tree.parent)
    theirs = np.isin(name[np.maximum(frame, 0)], torch_names) | (frame < 0)
    mine = np.isin(activity.thread, launching_threads(trace)) & (activity.row >= 0)
    mine &= ~theirs[tree.node_of[np.maximum(activity.row, 0)]]
    program = Coverage(union(activity.start[mine], activity.end[mine]))
    share = program.between(*long) / np.maximum(long[1] - long[0], 1)
    return np.asarray(share, dtype=np.float64)


def torchs_own(analysis: Analysis) -> Intervals:
    """Long stretches of torch's own Python: the optimizer's loops over parameters, hooks."""
    long = analysis.host_time.long
    if not analysis.has("stacks"):
        return long[0][:0], long[1][:0]
    own = program_share(analysis, long) < MOSTLY
    return long[0][own], long[1][own]
