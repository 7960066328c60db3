"""The replay proper: one pass over the calls of a rank, in the order of their work."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np

from kinetoscope.replay.costs import LEAST_CALL_NS, Costs
from kinetoscope.replay.model import Model
from kinetoscope.trace.trace import IntArray

Replay = Generator[tuple[int, int], int, "Run"]
"""Yields (event, arrival) at each event that other ranks take part in; wants its end."""


@dataclass(frozen=True)
class Run:
    """When everything happened, ns.

    Attributes:
        marks: of each step mark.
        end: of each device event.
        arrived: start of the events that other ranks took part in.
        calls: the calls that launch, wait or mark a step; `at` is the start of each, `lead` the
            host time before it.
        finish: when the last call had returned.
    """

    marks: list[int]
    end: list[int]
    arrived: dict[int, int]
    calls: IntArray
    at: list[int]
    lead: list[int]
    finish: int


def run(model: Model, costs: Costs, shared: Sequence[bool] | None = None) -> Replay:
    """Replay a rank in plain lists, since each moment depends on the one before.

    Calls that neither launch nor wait only take time; they are folded into the next one's lead.

    Args:
        model: the recording.
        costs: of its parts.
        shared: events whose end depends on other ranks; None for none.
    """
    calls, lead = _folded(model, costs)
    free = model.initial_free.tolist()
    ends = [0] * costs.duration.size
    shared = shared or [False] * costs.duration.size
    first, stop = model.first_event[calls].tolist(), model.first_event[calls + 1].tolist()
    stream, length = model.stream.tolist(), costs.duration.tolist()
    delay, depends, lag = model.delay.tolist(), model.depends_on.tolist(), model.lag.tolist()
    cost, waits = costs.call[calls].tolist(), costs.blocks[calls].tolist()
    tail = model.tail[calls].tolist()
    gone, is_mark = costs.gone[calls].tolist(), np.isin(calls, model.mark).tolist()
    now, marks, at = model.origin, [], []
    arrivals: dict[int, int] = {}
    for k, before in enumerate(lead):
        now += before
        at.append(now)
        if is_mark[k]:
            marks.append(now)
            continue
        for i in range(first[k], stop[k]):
            lane, other = stream[i], depends[i]
            # Plain comparisons: `max()` would double the time of this loop.
            begin, arrived = free[lane], now + delay[i]
            if other < 0:
                begin += lag[i]
            elif ends[other] + lag[i] > begin:
                begin = ends[other] + lag[i]
            if arrived > begin:  # noqa: PLR1730 - see above
                begin = arrived
            if gone[k]:
                ends[i] = begin
            elif shared[i]:
                arrivals[i] = begin
                ends[i] = free[lane] = yield i, begin
            else:
                ends[i] = free[lane] = begin + length[i]
        if waits[k] < 0:
            now += cost[k]
        else:
            now = max(now + LEAST_CALL_NS, ends[waits[k]] + tail[k])
    return Run(marks, ends, arrivals, calls, at, lead, now)


def alone(model: Model, costs: Costs) -> Run:
    """Replay one rank; its collectives take as long as they are said to."""
    replay = run(model, costs)
    try:
        next(replay)
    except StopIteration as done:
        found: Run = done.value
        return found
    raise AssertionError("no event is shared")


def _folded(model: Model, costs: Costs) -> tuple[IntArray, list[int]]:
    """The calls that matter, and the host time from the end of one to the start of the next."""
    matters = (np.diff(model.first_event) > 0) | (costs.blocks >= 0)
    matters[model.mark] = True
    calls = np.flatnonzero(matters)
    before = np.cumsum(costs.segment + costs.call) - costs.call  # up to the start of each call
    after = before[calls] + costs.call[calls]
    lead = before[calls] - np.concatenate(([0], after[:-1]))
    return calls, lead.tolist()
