"""Replay the model, with a change applied or without."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinetoscope.metrics.intervals import Coverage, subtract
from kinetoscope.replay.change import Change
from kinetoscope.replay.model import Model
from kinetoscope.trace.trace import IntArray

_LEAST_SEGMENT = 0.1
"""Part of a host segment that deflation leaves at least."""
_LEAST_CALL_NS = 1500


@dataclass(frozen=True)
class Replayed:
    """Step times of a replay, ns."""

    step_ns: float
    host_ns: float
    device_ns: float


def simulate(model: Model, change: Change | None = None, *, deflate: float = 0.0) -> Replayed:
    """Replay the steps.

    Args:
        model: the recording.
        change: what to change first; None for the recording itself.
        deflate: 0 replays the recording as it is, 1 without the modelled profiling overhead,
            values between and beyond take off more or less of it.

    Returns:
        The pace of host and device over the replayed steps, and the slower of the two.
    """
    change = change or Change()
    segment, cost = _host_costs(model, change, deflate)
    duration, dropped = _device_costs(model, change, deflate)
    blocks = model.blocks_on.copy()
    if change.unblock is not None and change.unblock.size:
        freed = np.isin(model.call_row, change.unblock)
        blocks[freed] = -1
        cost[freed] = np.minimum(cost[freed], 2 * _LEAST_CALL_NS)
    marks, ends = _run(model, segment, cost, blocks, duration, dropped)
    host = _pace(np.diff(marks), model.irregular)
    device = _device_pace(model, ends, marks)
    pace = max(host, device, float(change.step_floor_ns)) + change.extra_host_ns
    return Replayed(pace, host, device)


def _host_costs(model: Model, change: Change, deflate: float) -> tuple[IntArray, IntArray]:
    segment = model.segment.astype(np.float64)
    cost = model.call_cost.astype(np.float64)
    if change.host_cut[0].size:
        cover = Coverage(change.host_cut)
        low, high = model.segments
        segment = segment - change.host_cut_factor * cover.between(low, high)
        inside = cover.between(model.call_start, model.call_end)
        length = np.maximum(model.call_end - model.call_start, 1)
        cost = cost * (1 - change.host_cut_factor * np.minimum(inside / length, 1))
    if deflate > 0:
        own = Coverage(subtract(model.profiler, change.host_cut)).between(*model.segments)
        segment = segment - min(deflate, 1.0) * own
        kept = np.where(model.segment > 0, segment / np.maximum(model.segment, 1), 1.0)
        overhead = deflate * model.segment_overhead * np.clip(kept, 0, 1)
        from_call = np.clip(np.minimum(overhead, cost - _LEAST_CALL_NS), 0, 0.5 * overhead)
        cost = cost - from_call
        segment = np.maximum(segment - (overhead - from_call), _LEAST_SEGMENT * segment)
    return np.maximum(segment, 0).astype(np.int64), np.maximum(cost, 0).astype(np.int64)


def _device_costs(model: Model, change: Change, deflate: float) -> tuple[IntArray, IntArray]:
    duration = model.duration.copy()
    if model.inflated is not None:
        duration -= (min(deflate, 1.0) * model.inflated).astype(np.int64)
    if change.durations is not None and change.durations[0].size:
        rows, new = change.durations
        order = np.argsort(rows)
        at = np.searchsorted(rows[order], model.event_row)
        at = np.minimum(at, rows.size - 1)
        hit = rows[order][at] == model.event_row
        duration[hit] = new[order][at[hit]]
    dropped = np.zeros(model.call_row.size, dtype=bool)
    if change.drop_calls is not None and change.drop_calls.size:
        dropped = np.isin(model.call_row, change.drop_calls)
    return duration, dropped


def _run(
    model: Model,
    segment: IntArray,
    cost: IntArray,
    blocks: IntArray,
    duration: IntArray,
    dropped: IntArray,
) -> tuple[list[int], list[int]]:
    """The replay proper: plain lists, since each moment depends on the one before.

    Calls that neither launch nor wait only take time; they are folded into the next one's lead.
    """
    calls, lead = _folded(model, segment, np.where(dropped, 0, cost), blocks)
    free = model.initial_free.tolist()
    ends = [0] * duration.size
    first, stop = model.first_event[calls].tolist(), model.first_event[calls + 1].tolist()
    stream, length = model.stream.tolist(), duration.tolist()
    delay, depends, lag = model.delay.tolist(), model.depends_on.tolist(), model.lag.tolist()
    costs, waits, tails = cost[calls].tolist(), blocks[calls].tolist(), model.tail[calls].tolist()
    gone, is_mark = dropped[calls].tolist(), np.isin(calls, model.mark).tolist()
    now, marks = model.origin, []
    for k, before in enumerate(lead):
        now += before
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
            else:
                ends[i] = free[lane] = begin + length[i]
        if gone[k]:
            continue
        if waits[k] < 0:
            now += costs[k]
        else:
            now = max(now + _LEAST_CALL_NS, ends[waits[k]] + tails[k])
    return marks, ends


def _folded(
    model: Model, segment: IntArray, cost: IntArray, blocks: IntArray
) -> tuple[IntArray, list[int]]:
    """The calls that matter, and the host time from the end of one to the start of the next."""
    matters = (np.diff(model.first_event) > 0) | (blocks >= 0)
    matters[model.mark] = True
    calls = np.flatnonzero(matters)
    before = np.cumsum(segment + cost) - cost  # up to the start of each call
    after = before[calls] + cost[calls]
    lead = before[calls] - np.concatenate(([0], after[:-1]))
    return calls, lead.tolist()


def _pace(periods: IntArray, irregular: bool) -> float:
    if not periods.size:
        return 0.0
    return float(periods.mean() if irregular else np.median(periods))


def _device_pace(model: Model, ends: list[int], marks: list[int]) -> float:
    """Usual distance of the ends of consecutive steps' device work."""
    if not ends:
        return 0.0
    last = np.zeros(len(marks), dtype=np.int64)
    np.maximum.at(last, model.step, np.asarray(ends, dtype=np.int64))
    edges = np.maximum.accumulate(last[last > 0])
    if edges.size < 2:
        return float(max(ends) - marks[0]) / max(len(marks) - 1, 1) if edges.size else 0.0
    return _pace(np.diff(edges), model.irregular)
