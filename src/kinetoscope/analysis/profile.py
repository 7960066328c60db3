"""The profile of a job: the compact part of the result that comparisons are made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kinetoscope.analysis.core import Analysis
from kinetoscope.analysis.costs import (
    Steady,
    class_paths,
    kernels,
    modules,
    operators,
    steady_steps,
)
from kinetoscope.analysis.fingerprint import fingerprint
from kinetoscope.metrics.phase import trains
from kinetoscope.result.profile import Profile, RankSteps, Recorded
from kinetoscope.trace.kinds import DEVICE_WORK, Kind
from kinetoscope.trace.trace import IntArray

MOST_STEPS = 200
"""Steps of a rank that are kept one by one; of more, evenly spaced ones."""
MOST_RANKS = 64


def profile(analyses: Sequence[Analysis], lead: Analysis, *, world_size: int) -> Profile:
    """Return the profile of a job whose rank `lead` sets the pace."""
    steady = steady_steps(lead)
    first = min(analyses, key=lambda a: a.rank)  # the same rank in every run of a job
    paths, names = class_paths(lead)
    ops = operators(lead, steady, paths, names)
    device = kernels(lead, steady)
    shown = sum(max(cost.host_ns, cost.device_ns) for cost in (*ops, *device))
    return Profile(
        world_size=world_size,
        lead_rank=lead.rank,
        ranks=tuple(rank_steps(a, i) for i, a in enumerate(analyses[:MOST_RANKS])),
        recorded=recorded(lead),
        training=lead.get(trains),
        fingerprint=fingerprint(first, steady if first is lead else steady_steps(first)),
        operators=tuple(ops),
        kernels=tuple(device),
        modules=tuple(modules(lead, steady, paths, names)),
        left_out_ns=max(_all_ns(lead, steady) - shown, 0),
        started_ns=_started(lead),
    )


def rank_steps(analysis: Analysis, place: int = 0) -> RankSteps:
    """Return the steady steps of one rank."""
    times, bracket = analysis.times, analysis.what_if.unprofiled
    rank = analysis.trace.header.rank
    return RankSteps(
        rank=rank if rank is not None else place,
        host_ns=_thinned(times.host_periods),
        device_ns=_thinned(times.device_periods),
        recorded_ns=analysis.step_ns,
        low_ns=bracket.low,
        mid_ns=bracket.mid,
        high_ns=bracket.high,
        busy_ns=analysis.busy_per_step_ns,
        irregular=times.irregular,
    )


_FIRST_CLOCK_NS = 1_500_000_000 * 10**9
"""In 2017, before any trace that we read; smaller times count from the start of a machine."""


def _started(analysis: Analysis) -> int | None:
    trace = analysis.trace
    start = trace.header.base_time_ns + int(trace.column("ts_ns")[0]) if len(trace) else 0
    return start if start >= _FIRST_CLOCK_NS else None


def _thinned(periods: IntArray) -> tuple[int, ...]:
    if periods.size > MOST_STEPS:
        periods = periods[np.linspace(0, periods.size - 1, MOST_STEPS).astype(int)]
    return tuple(int(period) for period in periods)


def recorded(analysis: Analysis) -> Recorded:
    """Return what the recording contains."""
    kind = analysis.trace.column("kind")
    return Recorded(
        operators=analysis.has("ops"),
        shapes=analysis.has("shapes"),
        stacks=analysis.has("stacks"),
        memory=analysis.has("memory"),
        device=bool(np.isin(kind, DEVICE_WORK).any()),
        pinned=analysis.options.real_step_ns is not None,
    )


def _all_ns(analysis: Analysis, steady: Steady) -> int:
    """All that the tables could show: own host time of operators and time of device events."""
    trace, tree = analysis.trace, analysis.trace.tree
    device = analysis.times.device_rows
    device = device[steady.device[device] >= 0]
    roots = analysis.rows(Kind.CPU_OP)
    roots = roots[steady.host[roots] >= 0]
    up = tree.parent[tree.node_of[roots]]
    outer = np.where(up >= 0, tree.op[np.maximum(up, 0)], -1)
    total = trace.column("dur_ns")[device].sum() + trace.column("dur_ns")[roots[outer < 0]].sum()
    return int(total) // steady.count
