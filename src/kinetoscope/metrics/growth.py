"""Memory that each step leaves behind: allocations paired with frees by address.

A healthy step frees what it allocated, but for what the next step still needs. So the allocations
of a step that are alive at the end of the recording, one or more steps later, are either kept
for good or kept by a leak; when every step leaves about as much, the total has no bound in sight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.frames import is_engine_call
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.trace import IntArray, Trace


@dataclass(frozen=True)
class Growth:
    """What the steps leave behind on one device (-1: the host).

    Attributes:
        device: which one.
        steps: steps that can be judged: all but the last, whose tensors may still be in use.
        left: bytes that each of them leaves behind.
        level: lowest allocated total of every step, as far as recorded.
        rows: innermost host event at each surviving allocation (-1: none), of the judged steps.
        bytes: its size.
        step: its step.
        from_forward: share of those bytes that operators with a backward allocated.
        graph: autograd nodes that ran in each step.
        peak: highest allocated total.
        reserved: highest total held by the allocator.
    """

    device: int
    steps: IntArray
    left: IntArray
    level: IntArray
    rows: IntArray
    bytes: IntArray
    step: IntArray
    from_forward: float
    graph: IntArray
    peak: int
    reserved: int


def growth(trace: Trace) -> Growth | None:
    """Measure it on the device with the most memory events; None without memory events."""
    if trace.memory.height == 0 or trace.steps.count < 1:
        return None
    table = {name: trace.memory[name].to_numpy() for name in trace.memory.columns}
    devices = table["device"]
    used = devices[devices >= 0]
    device = int(np.bincount(used).argmax()) if used.size else -1
    table = {name: column[devices == device] for name, column in table.items()}
    step = trace.steps.of(table["ts_ns"])
    alive = _alive(table)
    last = trace.steps.count - 1
    judged = alive & (step >= 0) & (step < max(last, 1))
    rows = _innermost(trace, table["thread"][judged], table["ts_ns"][judged])
    size = table["bytes"][judged]
    steps = np.arange(max(last, 1))
    return Growth(
        device=device,
        steps=steps,
        left=np.bincount(step[judged], size, steps.size).astype(np.int64),
        level=_lowest(table["allocated"], step, trace.steps.count),
        rows=rows,
        bytes=size,
        step=step[judged],
        from_forward=_from_forward(trace, rows, size),
        graph=_graph(trace),
        peak=int(table["allocated"].max()),
        reserved=int(table["reserved"].max()),
    )


def _alive(table: dict[str, IntArray]) -> npt.NDArray[np.bool_]:
    """Allocations without a later free of the same address."""
    order = np.lexsort((table["ts_ns"], table["addr"]))
    addr, size = table["addr"][order], table["bytes"][order]
    freed = np.append((addr[1:] == addr[:-1]) & (size[1:] < 0), False)
    again = np.append((addr[1:] == addr[:-1]) & (size[1:] > 0), False)
    alive = np.zeros(order.size, dtype=bool)
    alive[order] = (size > 0) & ~freed & ~again
    return alive


def _lowest(total: IntArray, step: IntArray, count: int) -> IntArray:
    known = (total >= 0) & (step >= 0)
    lowest = np.full(count, np.iinfo(np.int64).max, dtype=np.int64)
    np.minimum.at(lowest, step[known], total[known])
    return lowest[lowest < np.iinfo(np.int64).max]


def _innermost(trace: Trace, thread: IntArray, at: IntArray) -> IntArray:
    """Innermost host event of a thread at each moment; -1 where none was recorded."""
    segments = trace.tree.segments
    result = np.full(at.size, -1, dtype=np.int64)
    for index in np.unique(thread):
        low = int(np.searchsorted(segments.thread, index, side="left"))
        high = int(np.searchsorted(segments.thread, index, side="right"))
        mine = np.flatnonzero(thread == index)
        if low == high:
            continue
        i = np.searchsorted(segments.start[low:high], at[mine], side="right") - 1 + low
        hit = (i >= low) & (segments.end[np.maximum(i, low)] > at[mine])
        result[mine] = np.where(hit, segments.row[np.maximum(i, low)], -1)
    return result


def _from_forward(trace: Trace, rows: IntArray, size: IntArray) -> float:
    known = rows >= 0
    if not known.any():
        return 0.0
    tree = trace.tree
    seq = trace.column("seq")[tree.rows]
    node = tree.node_of[rows[known]]
    carrier = nearest(seq >= 0, tree.parent)[node]
    forward = (carrier >= 0) & (trace.links.backward_root[node] < 0)
    return float(size[known][forward].sum() / max(int(size.sum()), 1))


def _graph(trace: Trace) -> IntArray:
    """Autograd nodes that ran in each step."""
    rows = rows_of(trace, Kind.CPU_OP)
    flags = trace.name_flags(is_engine_call)
    rows = rows[flags[trace.column("name_id")[rows]]] if flags.size else rows[:0]
    step = trace.steps.of(trace.column("ts_ns")[rows])
    return np.bincount(step[step >= 0], minlength=trace.steps.count)
