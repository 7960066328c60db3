"""Work that ended in a failed request for memory and was begun again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import device_ops
from kinetoscope.metrics.intervals import Intervals, points_in, union
from kinetoscope.trace.kinds import RUNTIME_KINDS, Kind
from kinetoscope.trace.trace import IntArray

_LAUNCHES = (Kind.LAUNCH, Kind.GRAPH_LAUNCH)
_REPEATS = 2


@dataclass(frozen=True)
class Retries:
    """Failed requests after which the program went on.

    Attributes:
        steps: steps that hold one, by number.
        frames: rows of the Python frames that the exceptions ended, as far as known.
        tried: host time of these frames: work in vain.
        before: host time between the begin of the step and each frame.
        backward: whether an exception came out of a backward pass, so that the forward pass before
            it was in vain as well.
    """

    steps: IntArray
    frames: IntArray
    tried: Intervals
    before: Intervals
    backward: bool


def retries(analysis: Analysis) -> Retries | None:
    """What was tried in vain; None where the program ended with the failure, or no time is known.

    The frame that an exception ends is the outermost one around it that launches nothing after
    it: the frame around that one caught the exception and went on.
    """
    at = np.sort(analysis.trace.failed_requests["ts_ns"].to_numpy())
    at = at[at >= 0]
    launches = analysis.trace.column("ts_ns")[analysis.rows(*_LAUNCHES)]
    steps = analysis.trace.steps
    survived = at[at < launches.max(initial=-1)]
    # After retries in two steps it is the recording that ended with the last failure.
    if survived.size == 0 or (
        survived.size < at.size and np.unique(steps.of(survived)).size < _REPEATS
    ):
        return None
    at = survived
    after = launches[np.searchsorted(launches, at, side="right")]
    found = [_ended(analysis, int(a), int(b)) for a, b in zip(at, after, strict=True)]
    nodes = np.unique([node for node in found if node >= 0]).astype(np.int64)
    tree = analysis.trace.tree
    start, end = tree.start[nodes], tree.end[nodes]
    begin = steps.edges[np.maximum(np.searchsorted(steps.edges, start, side="right") - 1, 0)]
    tried, inside = union(start, end), np.unique(steps.of(at))
    work = analysis.get(device_ops)
    return Retries(
        inside[inside >= 0],
        tree.rows[nodes],
        tried,
        union(np.minimum(begin, start), start),
        bool(work.backward[points_in(tried, work.at)].any()),
    )


def _ended(analysis: Analysis, at: int, after: int) -> int:
    """Node of the outermost frame around `at` that ends before `after`; -1: none."""
    tree = analysis.trace.tree
    around = (tree.start <= at) & (tree.end >= at) & (tree.end < after)
    nodes = np.flatnonzero(around & np.isin(tree.kind, (Kind.PYTHON, Kind.MODULE)))
    main = analysis.trace.steps.thread
    threads = [main] if main >= 0 else analysis.model.host_threads
    mine = nodes[np.isin(tree.thread[nodes], threads)]
    return int(mine[np.argmin(tree.start[mine])]) if mine.size else -1


def calls_in(analysis: Analysis, time: Intervals) -> IntArray:
    """Rows of the calls into the runtime that began in these stretches, on whatever thread."""
    rows = analysis.rows(*RUNTIME_KINDS)
    return rows[points_in(time, analysis.trace.column("ts_ns")[rows])]
