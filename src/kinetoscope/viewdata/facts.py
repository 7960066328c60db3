"""What the recording holds and lacks, for the section on data quality."""

from __future__ import annotations

import numpy as np

from kinetoscope import units
from kinetoscope.analysis import Analysis
from kinetoscope.result.view import Fact


def facts(lead: Analysis) -> tuple[Fact, ...]:
    """One line for each part of a good recording."""
    lines = [
        _has(
            lead,
            "device",
            "Device work",
            "recorded",
            "not recorded: idle time, kernels and "
            "copies cannot be seen. Record with ProfilerActivity.CUDA (or XPU).",
        ),
        _has(
            lead,
            "steps",
            "Steps",
            "marked or found",
            "fewer than two: call prof.step() after each step.",
        ),
        _has(
            lead,
            "shapes",
            "Input shapes",
            "recorded",
            "not recorded: no roofline. Record with record_shapes=True.",
        ),
        _has(
            lead,
            "stacks",
            "Python stacks",
            "recorded",
            "not recorded: operators have no line of code. Record with with_stack=True.",
        ),
        _has(
            lead, "memory", "Memory", "recorded", "not recorded. Record with profile_memory=True."
        ),
    ]
    return (*lines, *_coverage(lead), *_overhead(lead), *_clocks(lead))


def _has(lead: Analysis, need: str, title: str, yes: str, no: str) -> Fact:
    there = lead.has(need)  # type: ignore[arg-type]
    return Fact(title, yes if there else no, there)


def _coverage(lead: Analysis) -> list[Fact]:
    found = lead.coverage
    if found.launches == 0:
        return []
    share = f"{units.percent(found.ratio)} of {found.launches:,} launches have device events"
    linked = f"{found.events_linked:,} of {found.events:,} device events have a launch"
    return [Fact("Launches", f"{share}; {linked}", found.complete)]


def _overhead(lead: Analysis) -> list[Fact]:
    time = lead.step_time
    if lead.step_ns <= 0 or time.mid <= 0:
        return []
    factor = lead.step_ns / time.mid
    text = (
        f"a step took {units.duration(lead.step_ns)} as recorded and takes about "
        f"{units.duration(time.mid)} without the profiler: {units.times(factor)}"
    )
    captured = lead.trace.sidecar
    if captured and captured.baseline and captured.baseline.ended_faults_ns:
        text += ", because page faults ended while it was recorded"
    replay = f"; the replay of the recording is off by {units.percent(lead.replay_error)}"
    return [Fact("Profiler's cost", text + replay, factor < 1.25)]


def _clocks(lead: Analysis) -> list[Fact]:
    if not lead.peers:
        return []
    matches = lead.matches
    if matches.count == 0:
        return [Fact("Clocks of the ranks", "no collective was found on two ranks", False)]
    apart = int(matches.clock.max() - matches.clock.min())
    groups = int(np.unique(matches.group).size)
    text = (
        f"{matches.count:,} collectives of {groups} process {'group' if groups == 1 else 'groups'}"
        f" matched; the clocks were {units.duration(apart)} apart; after alignment the ranks leave "
        f"them within {units.duration(matches.residual_ns)} of each other"
    )
    if not matches.complete.all():
        text += f"; of {int((~matches.complete).sum()):,} a member is missing"
    return [Fact("Clocks of the ranks", text, matches.residual_ns < 1_000_000)]
