"""A job of several ranks: who waits for whom, and what the late rank was doing meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kinetoscope.analysis.core import Analysis
from kinetoscope.metrics.activity import Cause
from kinetoscope.metrics.blame import Blame, blame, by_owner
from kinetoscope.metrics.budget import (
    IDLE_LINES,
    Line,
    device_lines,
    family_compute_share,
    merged,
)
from kinetoscope.metrics.device import DeviceActivity
from kinetoscope.metrics.idle import explain, find_gaps
from kinetoscope.metrics.intervals import (
    Coverage,
    Intervals,
    clip,
    empty,
    intersect,
    measure,
    merge,
    subtract,
    union,
)
from kinetoscope.replay import JobModel, Model, join, simulate
from kinetoscope.trace.collective_names import JOINT
from kinetoscope.trace.trace import IntArray

WAITING_LABEL = "waiting for another rank"


_MOST_RESIDUAL = 0.05
"""Ranks whose collectives end further apart than this part of a step do not belong together."""


_MOST_RESIDUAL_ON_HOST = 0.15
"""The same where the processor does the collectives (Gloo): a rank leaves them when the scheduler
gives its thread a core, which on a busy machine is some milliseconds later."""


def trusted(analysis: Analysis) -> bool:
    """Do the ranks' recordings fit together well enough to tell waiting from transfer?"""
    matches = analysis.matches
    most = _MOST_RESIDUAL if analysis.comm.on_device else _MOST_RESIDUAL_ON_HOST
    return matches.count > 0 and matches.residual_ns <= most * analysis.step_ns


@dataclass(frozen=True)
class Waits:
    """Exposed communication of one rank inside its step window, on its own clock.

    Attributes:
        transfer: what would remain if all ranks arrived together (intrinsic, exposed).
        waiting: (position of the late rank in `Analysis.ranks`, stretches spent waiting for it).
        unknown: exposed communication without a counterpart on another rank.
    """

    transfer: Intervals
    waiting: tuple[tuple[int, Intervals], ...]
    unknown: Intervals

    @property
    def waiting_ns(self) -> int:
        """All waiting, ns."""
        return sum(measure(stretches) for _, stretches in self.waiting)


def waits(analysis: Analysis) -> Waits:
    """Split exposed communication into transfer and waiting; the transfer comes last (M-4).

    A rank that is late because it waited itself, in another group, is not the one waited for.
    """
    return analysis.once(_waits)


def _waits(analysis: Analysis) -> Waits:
    device = analysis.device
    if device is None:
        return Waits(empty(), (), empty())
    exposed = device.within(*analysis.times.window).exposed_comm
    matches, mine = analysis.matches, analysis.place
    if not trusted(analysis):
        return Waits(empty(), (), exposed)
    here = np.flatnonzero(matches.present[mine])
    at, comm = matches.index[mine, here], analysis.comm
    found = by_owner(exposed, *_by_cause(analysis))
    left = subtract(exposed, merge(*found.values()))
    transfer = intersect(left, union(comm.start[at], comm.end[at]))
    return Waits(transfer, tuple(found.items()), subtract(left, transfer))


def _by_cause(analysis: Analysis) -> tuple[Intervals, IntArray]:
    """This rank's waits on its own clock, cut by the rank that causes them."""
    matches, mine, comm = analysis.matches, analysis.place, analysis.comm
    instance, cause, part = blamed(analysis).parts[mine]
    first = np.append(True, instance[1:] != instance[:-1])[: instance.size]
    upto = np.cumsum(part)
    before = (upto - part)[first][np.cumsum(first) - 1] if instance.size else part
    at = matches.index[mine, instance]
    length = matches.waiting[mine, instance]
    start = comm.start[at] + ((upto - part - before) * length).astype(np.int64)
    end = comm.start[at] + np.rint((upto - before) * length).astype(np.int64)
    return (start, end), cause


def blamed(analysis: Analysis) -> Blame:
    """Which rank causes how much waiting; computed once for the job."""
    return analysis.ranks[0].once(_blamed)


def _blamed(analysis: Analysis) -> Blame:
    matches = analysis.matches
    waited = np.zeros_like(matches.index)
    for place, rank in enumerate(analysis.ranks):
        here = np.flatnonzero(matches.present[place])
        at, waiting = matches.index[place, here], matches.waiting[place, here]
        if rank.device is not None:
            start = rank.comm.start[at]
            exposed = Coverage(rank.device.exposed_comm).between(start, start + waiting)
            waited[place, here] = np.where(waiting > 0, exposed, 0)
        else:
            waited[place, here] = waiting
    return blame(matches, waited)


def waiting_share(analysis: Analysis) -> float:
    """Waiting for other ranks as a share of the recorded time; the pace-setter has least of it.

    Without a counterpart all exposed communication may be waiting.
    """
    found = waits(analysis)
    total = found.waiting_ns + measure(found.unknown)
    if analysis.device is None:
        total = int(analysis.matches.waiting[analysis.place].sum()) if trusted(analysis) else 0
        low, high = analysis.times.host_window
        return total / max(high - low, 1)
    return total / max(analysis.step_ns * analysis.steps, 1)


def leading(analyses: Sequence[Analysis]) -> Analysis:
    """The rank that sets the pace: the one that waits least for the others.

    In a synchronous job all ranks take the same time; the one that the others wait for spends
    the least of it in collectives, so its timeline shows the cause.
    """
    return analyses[0] if len(analyses) == 1 else min(analyses, key=waiting_share)


def with_waiting(analysis: Analysis) -> Model:
    """The model of a rank that knows its waiting for the others, and which part is profiling.

    A rank whose host sets its pace is late by as much more as profiling slowed its host.
    """
    comm, matches, model = analysis.comm, analysis.matches, analysis.own_model
    if not comm.on_device or not trusted(analysis):
        return model
    part = np.zeros(len(analysis.ranks))
    for place in np.unique(matches.last).tolist():
        if place != analysis.place:
            part[place] = analysis.ranks[place].once(_profiled_part)
    here = matches.present[analysis.place]
    waiting = matches.waiting[analysis.place, here]
    row = comm.row[matches.index[analysis.place, here]]

    def of_events(ns: IntArray) -> IntArray:
        per_row = np.zeros(len(analysis.trace), dtype=np.int64)
        per_row[row] = ns
        return np.asarray(per_row[model.event_row], dtype=np.int64)

    inflated = (part[matches.last[here]] * waiting).astype(np.int64)
    return replace(model, waiting=of_events(waiting), inflated=of_events(inflated))


def _profiled_part(analysis: Analysis) -> float:
    """Part of a rank's step that its replay takes for profiling, 0..1."""
    model = analysis.own_model
    recorded = max(simulate(model).step_ns, 1.0)
    return max(0.0, 1.0 - simulate(model, deflate=1.0).step_ns / recorded)


def waiting_lines(analysis: Analysis) -> tuple[list[Line], int]:
    """Budget lines for the waiting of this rank, by what the late ranks did meanwhile.

    Returns:
        The lines, and the time that they take from "communication that nothing hides".
    """
    found = waits(analysis)
    lines: list[Line] = []
    for place, stretches in found.waiting:
        peer = analysis.ranks[place]
        to_peer = int(analysis.matches.clock[place] - analysis.matches.clock[analysis.place])
        moved = stretches[0] + to_peer, stretches[1] + to_peer
        label = f"waiting for rank {peer.rank}" if len(found.waiting) < 3 else WAITING_LABEL
        lines += [replace(line, label=f"{label}: {line.label}") for line in lines_in(peer, moved)]
    return merged(lines), found.waiting_ns


def lines_in(analysis: Analysis, stretches: Intervals) -> list[Line]:
    """Budget lines of a rank over some stretches of its own time; they sum to their length."""
    device = analysis.device
    total = measure(stretches)
    if total == 0:
        return []
    if device is None:
        return [Line("communication", "not recorded", total)]
    low, high = int(stretches[0][0]), int(stretches[1][-1])
    times = replace(analysis.times, window=(low, high))
    inside = DeviceActivity(
        device.device,
        intersect(device.compute, stretches),
        intersect(device.comm, stretches),
        intersect(device.memcpy, stretches),
        intersect(device.busy, stretches),
    )
    share = family_compute_share(analysis.trace, analysis.times)
    lines = device_lines(analysis.trace, inside, times, share)
    idle = subtract(stretches, clip(device.busy, low, high))
    gaps = find_gaps(analysis.trace, device, times)
    pieces = explain(analysis.trace, analysis.activity, gaps)
    for cause in np.unique(pieces.cause):
        mine = pieces.cause == cause
        part = intersect(idle, union(pieces.start[mine], pieces.end[mine]))
        class_, label = IDLE_LINES[Cause(cause)]
        lines.append(Line(class_, label, measure(part), host=True))
        idle = subtract(idle, part)
    late = union(gaps.host_end[gaps.host_end > gaps.start], gaps.end[gaps.host_end > gaps.start])
    lines.append(Line("framework", "launch latency", measure(intersect(idle, late)), host=True))
    lines.append(
        Line(
            "unattributed",
            "device waiting, its work already launched",
            measure(subtract(idle, late)),
        )
    )
    return merged(lines)


MAX_REPLAYED = 8
"""Ranks replayed together at most: the one in question and those that the others wait for."""


def replayed_places(analysis: Analysis) -> tuple[int, ...]:
    """Positions in `ranks` of the ranks to replay together, the analysis' own first."""
    order = sorted(
        range(len(analysis.ranks)), key=lambda r: (r != analysis.place, -analysis.matches.caused(r))
    )
    return tuple(order[:MAX_REPLAYED])


def joined(analysis: Analysis) -> JobModel | None:
    """The models of the ranks as one job; None where the recordings do not allow it.

    Only collectives that all ranks leave together join them: the sender of a broadcast does not
    wait for its receivers.
    """
    if not analysis.peers or not trusted(analysis) or not analysis.comm.on_device:
        return None
    places, matches = replayed_places(analysis), analysis.matches
    joint = np.zeros(matches.count, dtype=bool)
    event = np.full((len(places), matches.count), -1, dtype=np.int64)
    for r, place in enumerate(places):
        peer, index = analysis.ranks[place], matches.index[place]
        has = np.flatnonzero(index >= 0)
        joint[has] |= peer.comm.is_a(*JOINT)[index[has]]
        number = np.full(len(peer.trace), -1, dtype=np.int64)
        number[peer.own_model.event_row] = np.arange(peer.own_model.event_row.size)
        event[r, has] = number[peer.comm.row[index[has]]]
    event[:, ~joint] = -1
    found = join(
        [analysis.ranks[p].own_model for p in places],
        event,
        matches.intrinsic,
        clock=matches.clock[list(places)],
    )
    return found if found.steps.size >= 2 else None
