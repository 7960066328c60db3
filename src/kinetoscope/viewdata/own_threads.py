"""Threads of our own capture: they wait while the program works, and are no part of it."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from kinetoscope.trace.trace import Trace

_WORK = re.compile(r"kinetoscope[/\\]capture[/\\]\w+\.py\(\d+\): _work$")


def own_threads(trace: Trace) -> npt.NDArray[np.bool_]:
    """Which of the trace's threads our capture ran; never the one with the steps."""
    tree = trace.tree
    own = np.zeros(max(len(trace.threads), 1), dtype=bool)
    names = [i for i, name in enumerate(trace.names) if _WORK.search(name)]
    own[tree.thread[np.isin(trace.column("name_id")[tree.rows], names)]] = True
    if trace.steps.thread >= 0:
        own[trace.steps.thread] = False
    return own
