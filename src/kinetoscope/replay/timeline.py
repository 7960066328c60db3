"""When everything happens in a replay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetoscope.replay.change import Change
from kinetoscope.replay.costs import Costs, costs_of
from kinetoscope.replay.model import Model
from kinetoscope.replay.run import Run, alone
from kinetoscope.replay.simulate import pace_of
from kinetoscope.trace.trace import IntArray


@dataclass(frozen=True)
class Timeline:
    """A replay in full, ns on its own clock, which begins where the recording's steps do.

    Attributes:
        begin, end: of each device event of the model.
        kept: events that the change has left.
        call_start, call_end: of each call of the model.
        blocks: event that each call waits for; -1: none.
        edges: ends of the device work of the steps that have any, in order.
        marks: step marks of the host.
        step_ns: pace, with the floor and the cost of the change.
    """

    begin: IntArray
    end: IntArray
    kept: npt.NDArray[np.bool_]
    call_start: IntArray
    call_end: IntArray
    blocks: IntArray
    edges: IntArray
    marks: IntArray
    step_ns: float

    @property
    def window(self) -> tuple[int, int, int]:
        """Stretch of whole steps on the device's timeline and their number."""
        if self.edges.size >= 2:
            return int(self.edges[0]), int(self.edges[-1]), self.edges.size - 1
        last = int(self.end.max(initial=int(self.marks[-1])))
        return int(self.marks[0]), last, max(self.marks.size - 1, 1)


def timeline(model: Model, change: Change | None = None, *, deflate: float = 0.0) -> Timeline:
    """Replay one rank and keep when everything happened."""
    change = change or Change()
    costs = costs_of(model, change, deflate)
    run = alone(model, costs)
    return timeline_of(model, costs, run, step_ns=pace_of(model, run, change).step_ns)


def timeline_of(model: Model, costs: Costs, run: Run, *, step_ns: float) -> Timeline:
    """The moments of a finished replay."""
    end = np.asarray(run.end, dtype=np.int64)
    owner = np.repeat(np.arange(model.call_row.size), np.diff(model.first_event))
    kept = ~costs.gone[owner]
    begin = end - np.where(kept, costs.duration, 0)
    shared = np.fromiter(run.arrived, np.int64, len(run.arrived))
    begin[shared] = np.fromiter(run.arrived.values(), np.int64, len(run.arrived))
    start, stop = _calls(costs, run)
    marks = np.asarray(run.marks, dtype=np.int64)
    edges = _edges(model, end, kept, marks)
    return Timeline(begin, end, kept, start, stop, costs.blocks, edges, marks, step_ns)


def _calls(costs: Costs, run: Run) -> tuple[IntArray, IntArray]:
    """Start and end of every call; those between two that matter only take their time."""
    at = np.asarray(run.at, dtype=np.int64)
    lead = np.asarray(run.lead, dtype=np.int64)
    returned = np.append(at[1:] - lead[1:], run.finish)
    # How far each call lies after the end of the last one that matters.
    before = np.cumsum(costs.segment + costs.call) - costs.call
    last = np.searchsorted(run.calls, np.arange(before.size), side="left") - 1
    first = last < 0
    anchor = np.where(first, 0, before[run.calls[last]] + costs.call[run.calls[last]])
    origin = at[0] - lead[0] if at.size else 0
    start = np.where(first, origin, returned[np.maximum(last, 0)]) + before - anchor
    stop = start + costs.call
    start[run.calls], stop[run.calls] = at, returned
    return start, stop


def as_recorded(model: Model, found: Timeline, at: IntArray) -> IntArray:
    """Moments of the replayed host as moments of the recorded one, ns."""
    replayed = np.stack((found.call_start, found.call_end), axis=1).ravel()
    recorded = np.stack((model.call_start, model.call_end), axis=1).ravel()
    x, y = np.maximum.accumulate(replayed), np.maximum.accumulate(recorded)
    return np.asarray(np.interp(at - x[0], x - x[0], y - y[0]) + y[0], dtype=np.int64)


def _edges(model: Model, end: IntArray, kept: npt.NDArray[np.bool_], marks: IntArray) -> IntArray:
    if not end.size:
        return np.empty(0, dtype=np.int64)
    last = np.full(marks.size, np.iinfo(np.int64).min, dtype=np.int64)
    np.maximum.at(last, model.step[kept], end[kept])
    return np.maximum.accumulate(last[last > np.iinfo(np.int64).min])
