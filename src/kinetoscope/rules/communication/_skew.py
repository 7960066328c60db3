"""What a slow rank does more of than the others: kernels by operator, host time by function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.activity import Cause
from kinetoscope.metrics.budget import main_thread
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray

Segment = Literal["kernels", "loader", "gc", "host"]

_IDLE_CAUSES = (Cause.SYNC, Cause.COLLECTIVE, Cause.AUTOGRAD, Cause.LAUNCH, Cause.COPY)
"""Causes under which a host waits, for the device, for peers or for room in the launch queue."""

_UNIFORM = 1.5
"""A host that is slower by less than this throughout has a slower or busier core: profiling
alone makes two ranks differ by up to 1.3."""

_OUTSTANDING = 1.3
"""A function must take this much more than the rank's general slowness explains."""


@dataclass(frozen=True)
class Excess:
    """What one rank does longer than the others, per step.

    Attributes:
        segment: kind of work.
        name: operator or function with the largest excess; "" when nothing stands out.
        ns: excess per step.
        ratio: time on this rank over the time on the others.
        rows: events of this rank that make it up.
        part: excess as a part of the rows' time.
        most_ns: excess per step when the host is not taken for slower in general.
        uniform: no single name makes up half of it.
    """

    segment: Segment
    name: str
    ns: int
    ratio: float
    rows: IntArray
    part: float
    most_ns: int = 0
    uniform: bool = False


@dataclass(frozen=True)
class _Costs:
    """Time of one rank per step by name; rows and lengths that add up to it."""

    total: dict[str, float]
    rows: dict[str, IntArray]


def excess(slow: Analysis, others: Sequence[Analysis], least_ns: int) -> Excess | None:
    """The segment in which the slow rank exceeds the others most; None below `least_ns`."""
    found = [_kernels(slow, others), _host(slow, others)]
    known = [e for e in found if e is not None and e.ns >= least_ns]
    return max(known, key=lambda e: e.ns, default=None)


def _median(costs: Sequence[_Costs], name: str) -> float:
    return float(np.median([c.total.get(name, 0.0) for c in costs]))


def _kernels(slow: Analysis, others: Sequence[Analysis]) -> Excess | None:
    """Longer kernels: more work, or a slower device."""
    mine, theirs = _device_costs(slow), [_device_costs(o) for o in others]
    total = sum(mine.total.values())
    usual = float(np.median([sum(c.total.values()) for c in theirs]))
    if total <= usual or not mine.total:
        return None
    over = {name: total_ - _median(theirs, name) for name, total_ in mine.total.items()}
    worst = max(over, key=lambda name: over[name])
    rows = np.concatenate([mine.rows[n] for n, value in over.items() if value > 0])
    positive = sum(v for v in over.values() if v > 0)
    kept = sum(mine.total[n] for n, v in over.items() if v > 0)
    return Excess(
        "kernels",
        worst,
        int(total - usual),
        total / usual if usual else float("inf"),
        rows,
        min(positive / max(kept, 1.0), (total - usual) / max(kept, 1.0)),
        uniform=over[worst] < 0.5 * positive,
    )


def outer_frames(analysis: Analysis, rows: IntArray) -> IntArray:
    """Node of the user's outermost function around each row, the script itself left out."""
    trace, tree = analysis.trace, analysis.trace.tree
    names = trace.column("name_id")
    frame = analysis.locator.frames(rows)
    best = np.full(rows.size, -1, dtype=np.int64)
    script = np.array([n.endswith(": <module>") for n in trace.names], dtype=bool)
    while (frame >= 0).any():
        here = np.maximum(frame, 0)
        inside = (frame >= 0) & ~script[names[tree.rows[here]]]
        best[inside] = frame[inside]
        above = np.where(frame >= 0, tree.parent[here], -1)
        frame = np.where(above >= 0, tree.user_frame[np.maximum(above, 0)], -1)
    return best


def _device_costs(analysis: Analysis) -> _Costs:
    """Kernel time per steady step by operator, or by kernel where no operator is known."""
    trace, times = analysis.trace, analysis.times
    rows = times.device_rows[np.isin(times.device_step, times.steady)]
    rows = rows[trace.column("kind")[rows] == Kind.KERNEL]
    op = trace.links.op[rows]
    name = trace.column("name_id")[np.where(op >= 0, op, rows)]
    return _by_name(analysis, rows, name, trace.column("dur_ns")[rows])


def _by_name(analysis: Analysis, rows: IntArray, name: IntArray, ns: IntArray) -> _Costs:
    total: dict[str, float] = {}
    members: dict[str, IntArray] = {}
    order = np.argsort(name, kind="stable")
    bounds = np.flatnonzero(np.diff(name[order])) + 1
    for mine in np.split(order, bounds) if order.size else []:
        number = int(name[mine[0]])
        text = analysis.trace.names[number] if number >= 0 else _NAMED[Cause(-1 - number)]
        total[text] = float(ns[mine].sum()) / analysis.steps_on_host
        members[text] = rows[mine]
    return _Costs(total, members)


def _host(slow: Analysis, others: Sequence[Analysis]) -> Excess | None:
    """Longer host work: one function, or everything by a factor that profiling cannot explain."""
    mine, theirs = _host_costs(slow), [_host_costs(o) for o in others]
    usual = {name: _median(theirs, name) for name in mine.total}
    worst = max(mine.total, key=lambda name: mine.total[name] - usual[name])
    here, there = mine.total[worst], usual[worst]
    # How much slower the host is in general shows in all that it does besides.
    general = max(_uniform(mine.total, usual, leave=worst), 1.0)
    if here <= _OUTSTANDING * general * there:
        return _slower_host(mine, theirs, general)
    over = here - general * there
    return Excess(
        _SEGMENTS.get(worst, "host"),
        worst if worst not in _SEGMENTS else "",
        int(over),
        here / there if there else float("inf"),
        mine.rows[worst],
        over / here,
        most_ns=int(here - there),
    )


def _slower_host(mine: _Costs, theirs: Sequence[_Costs], general: float) -> Excess | None:
    total = sum(mine.total.values())
    usual = float(np.median([sum(c.total.values()) for c in theirs]))
    if general < _UNIFORM or total <= usual:
        return None
    rows = np.concatenate(list(mine.rows.values()))
    over = total - usual
    return Excess(
        "host", "", int(over), total / max(usual, 1.0), rows, over / total, most_ns=int(over)
    )


_LOADER, _GC, _NOT_RECORDED = "the DataLoader", "garbage collection", "code that was not recorded"
_SEGMENTS: dict[str, Segment] = {_LOADER: "loader", _GC: "gc"}


def _uniform(mine: dict[str, float], usual: dict[str, float], *, leave: str) -> float:
    """Weighted median of the ratio of equal work: how much slower the host is in general."""
    names = [name for name, ns in usual.items() if ns > 0 and name not in (leave, _NOT_RECORDED)]
    if not names:
        return 1.0
    weight = np.array([usual[name] for name in names])
    ratio = np.array([mine[name] for name in names]) / weight
    order = np.argsort(ratio)
    reach = np.cumsum(weight[order])
    return float(ratio[order][np.searchsorted(reach, reach[-1] / 2)])


def _host_costs(analysis: Analysis) -> _Costs:
    """Host time per step by user function (or innermost event) on the threads that launch."""
    trace, activity, tree = analysis.trace, analysis.activity, analysis.trace.tree
    low, high = analysis.times.host_window
    threads = np.union1d(analysis.model.host_threads, [main_thread(trace)])
    start, end = np.clip(activity.start, low, high), np.clip(activity.end, low, high)
    use = np.isin(activity.thread, threads) & (end > start)
    use &= ~np.isin(activity.cause, _IDLE_CAUSES)
    sleeps = np.array(["sleep" in name for name in trace.names], dtype=bool)
    use &= (activity.cause != Cause.WAIT) | sleeps[trace.column("name_id")[activity.row]]
    rows, ns, cause = activity.row[use], (end - start)[use], activity.cause[use]
    user = tree.user_frame[tree.node_of[rows]]
    name = trace.column("name_id")[np.where(user >= 0, tree.rows[np.maximum(user, 0)], rows)]
    costs = _by_name(analysis, rows, np.where(np.isin(cause, tuple(_NAMED)), -1 - cause, name), ns)
    _add_not_recorded(analysis, costs, threads)
    return costs


_NAMED = {Cause.LOADER: _LOADER, Cause.GC: _GC}


def _add_not_recorded(analysis: Analysis, costs: _Costs, threads: IntArray) -> None:
    """Time in which no event covers the main thread: code between the recorded operators."""
    activity = analysis.activity
    low, high = analysis.times.host_window
    part = activity.of_thread(main_thread(analysis.trace))
    covered = np.clip(activity.end[part], low, high) - np.clip(activity.start[part], low, high)
    blank = (high - low) - int(np.maximum(covered, 0).sum())
    others = np.isin(activity.thread, threads) & (activity.thread != main_thread(analysis.trace))
    elsewhere = np.clip(activity.end[others], low, high) - np.clip(
        activity.start[others], low, high
    )
    rest = max(blank - int(np.maximum(elsewhere, 0).sum()), 0)
    costs.total[_NOT_RECORDED] = rest / analysis.steps_on_host
    costs.rows[_NOT_RECORDED] = np.empty(0, dtype=np.int64)
