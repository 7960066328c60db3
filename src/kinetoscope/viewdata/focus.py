"""Where to look in the timeline for each finding, and the call path there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.result import Finding, Location
from kinetoscope.result.view import Focus, Name
from kinetoscope.trace.frames import is_user_file, parse_frame
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray
from kinetoscope.viewdata.idle import idle_stretches
from kinetoscope.viewdata.names import kind_word, shorten

_DEEPEST = 12


def focuses(
    findings: Sequence[Finding], lead: Analysis, moved: dict[int, int]
) -> tuple[Focus, ...]:
    """One for each finding that has a place in the recording.

    Args:
        findings: of the result.
        lead: the rank that the rules looked at.
        moved: rank -> what to subtract from its times to get the page's.
    """
    found = []
    for number, finding in enumerate(findings):
        by = moved.get(lead.rank, 0)
        row = _longest_row(lead, finding)
        focus = _at_row(lead, number, row, by) if row >= 0 else _at_gap(lead, number, finding, by)
        if focus is not None:
            found.append(focus)
    return tuple(found)


def _at_row(analysis: Analysis, number: int, row: int, by: int) -> Focus:
    trace = analysis.trace
    start = int(trace.column("ts_ns")[row]) - by
    return Focus(
        finding=number,
        rank=analysis.rank,
        start_ns=start,
        end_ns=start + int(trace.column("dur_ns")[row]),
        search=shorten(trace.names[trace.column("name_id")[row]], 200),
        path=_path(analysis, row),
    )


def _at_gap(analysis: Analysis, number: int, finding: Finding, by: int) -> Focus | None:
    """A finding without a place: the longest idle stretch of its class."""
    idle = idle_stretches(analysis)
    classes = [class_ == finding.class_ for class_, _ in idle.reasons]
    mine = np.flatnonzero(np.array(classes, dtype=bool)[idle.reason]) if classes else idle.reason
    if mine.size == 0:
        return None
    at = int(mine[(idle.end - idle.start)[mine].argmax()])
    start, end = int(idle.start[at]) - by, int(idle.end[at]) - by
    return Focus(number, analysis.rank, start, end, idle.reasons[int(idle.reason[at])][1])


def _longest_row(analysis: Analysis, finding: Finding) -> int:
    """Longest event in the steady steps that stands for the finding's first place; -1: none."""
    for location in finding.locations:
        rows = _rows_at(analysis, location)
        inside = analysis.in_steps(rows)
        rows = inside if inside.size else rows
        if rows.size:
            return int(rows[analysis.trace.column("dur_ns")[rows].argmax()])
    return -1


def _rows_at(analysis: Analysis, location: Location) -> IntArray:
    if location.file is not None and location.function is not None:
        wanted = location.file, location.function

        def is_frame(name: str) -> bool:
            frame = parse_frame(name)
            return frame is not None and (frame.file, frame.function) == wanted

        rows = analysis.matching(is_frame)
        if rows.size:
            return rows
    if location.module is not None:
        last = location.module.rpartition(" / ")[2]
        return analysis.matching(
            lambda name: (
                name.startswith("nn.Module: ")
                and name.removeprefix("nn.Module: ").rpartition("_")[0] == last
            )
        )
    return np.empty(0, dtype=np.int64)


def _path(analysis: Analysis, row: int) -> tuple[Name, ...]:
    """Callers of an event from the outside in: the user's frames, modules, operators, ranges."""
    trace, tree = analysis.trace, analysis.trace.tree
    node = int(tree.node_of[row])
    if node < 0:
        return ()
    steps = []
    for at in (node, *tree.ancestors(node)):
        name = trace.names[trace.column("name_id")[tree.rows[at]]]
        kind = Kind(int(tree.kind[at]))
        if kind == Kind.PYTHON:
            frame = parse_frame(name)
            if at != node and (frame is None or not is_user_file(frame.file)):
                continue
        steps.append(Name(shorten(name, 200), kind_word(kind, name=name)))
    return tuple(reversed(steps[:_DEEPEST]))
