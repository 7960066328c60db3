"""What a change, and taking the profiler's cost off, leave of each call and each event."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.intervals import Coverage, merge, subtract
from kinetoscope.replay.change import Change, Rows
from kinetoscope.replay.model import Model
from kinetoscope.trace.trace import IntArray

_LEAST_SEGMENT = 0.1
"""Part of a host segment that deflation leaves at least."""
LEAST_CALL_NS = 1500


@dataclass(frozen=True)
class Costs:
    """Times that a replay works with, ns.

    Attributes:
        segment: host work before each call.
        call: of each call that does not wait.
        blocks: device event that each call waits for; -1: none.
        duration: of each device event.
        gone: calls that no longer exist, nor what they launched.
    """

    segment: IntArray
    call: IntArray
    blocks: IntArray
    duration: IntArray
    gone: npt.NDArray[np.bool_]


def costs_of(model: Model, change: Change, deflate: float) -> Costs:
    """Apply a change and take off `deflate` times the modelled profiling overhead."""
    segment, call = _host(model, change, deflate)
    blocks = model.blocks_on
    if change.unblock is not None and change.unblock.size:
        freed = np.isin(model.call_row, change.unblock)
        blocks = np.where(freed, -1, blocks)
        call[freed] = np.minimum(call[freed], 2 * LEAST_CALL_NS)
    gone = np.zeros(model.call_row.size, dtype=bool)
    if change.drop_calls is not None and change.drop_calls.size:
        gone = np.isin(model.call_row, change.drop_calls)
        call, blocks = np.where(gone, 0, call), np.where(gone, -1, blocks)
    return Costs(segment, call, blocks, _device(model, change, deflate), gone)


def _host(model: Model, change: Change, deflate: float) -> tuple[IntArray, IntArray]:
    segment = model.segment.astype(np.float64)
    cost = model.call_cost.astype(np.float64)
    layers = change.layers
    for cut, part in layers:
        cover = Coverage(cut)
        segment = segment - part * cover.between(*model.segments)
        inside = cover.between(model.call_start, model.call_end)
        length = np.maximum(model.call_end - model.call_start, 1)
        cost = cost - part * model.call_cost * np.minimum(inside / length, 1)
    if deflate > 0:
        left = subtract(model.profiler, merge(*(cut for cut, _ in layers)))
        segment = segment - min(deflate, 1.0) * Coverage(left).between(*model.segments)
        kept = np.where(model.segment > 0, segment / np.maximum(model.segment, 1), 1.0)
        kept = np.clip(kept, 0, 1)
        overhead = deflate * _of_the_rest(model, kept) * model.segment_overhead * kept
        from_call = np.clip(np.minimum(overhead, cost - LEAST_CALL_NS), 0, 0.5 * overhead)
        cost = cost - from_call
        segment = np.maximum(segment - (overhead - from_call), _LEAST_SEGMENT * segment)
    return np.maximum(segment, 0).astype(np.int64), np.maximum(cost, 0).astype(np.int64)


_MOST_OF_THE_REST = 1.5
_PACE = 0.7
"""A device that is as busy as that sets the pace: there a faster rest would be no gain of the
change."""


def _of_the_rest(model: Model, kept: npt.NDArray[np.float64]) -> float:
    """Factor on the overhead of what a change leaves.

    Code that a change removes is often a tight loop: many small operators, each of which costs
    the profiler less than one that is met once a step. Fifteen programs with such loops saved
    about the share of the step that was recorded for them.
    """
    whole = float(model.segment_overhead.sum())
    rest = float((model.segment_overhead * kept).sum())
    time = float(model.segment.sum())
    recorded = int(model.call_end[-1] - model.call_start[0])
    if rest <= 0 or time <= 0 or rest >= whole or model.duration.sum() > _PACE * recorded:
        return 1.0
    even = whole * float((model.segment * kept).sum()) / time
    return min(max(even / rest, 1.0), _MOST_OF_THE_REST)


def _device(model: Model, change: Change, deflate: float) -> IntArray:
    duration = model.duration.copy()
    if model.inflated is not None:
        duration -= (min(deflate, 1.0) * model.inflated).astype(np.int64)
    if change.durations is not None:
        at, new = given(model, change.durations)
        duration[at] = new
    if change.transfers is not None:
        at, new = given(model, change.transfers)
        waiting = model.waiting[at] if model.waiting is not None else 0
        if model.inflated is not None:
            waiting = waiting - (min(deflate, 1.0) * model.inflated[at]).astype(np.int64)
        duration[at] = new + waiting
    return np.asarray(duration, dtype=np.int64)


def given(model: Model, times: Rows) -> tuple[IntArray, IntArray]:
    """Events of the model that a list of rows speaks of, and their new times."""
    rows, new = times
    if not rows.size:
        return rows, new
    order = np.argsort(rows, kind="stable")
    at = np.minimum(np.searchsorted(rows[order], model.event_row), rows.size - 1)
    hit = np.flatnonzero(rows[order][at] == model.event_row)
    return hit, new[order][at[hit]]
