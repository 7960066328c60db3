"""What a reader should know about a recording before trusting the numbers."""

from __future__ import annotations

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.analysis.whatif import TRUSTED_ERROR
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.job import Job
from kinetoscope.trace.kinds import Kind
from kinetoscope.units import duration, percent

_LONG_GAP = 0.25
"""From this share of the step on, a single gap is named."""
_ONE_CALL = 0.5
"""From this share of the gap on, a single call explains it."""
_WORTH_NAMING = 0.25
"""From this share of the gap on, a function of the program is named."""


def _long_gap(analysis: Analysis) -> list[str]:
    """Name the one gap that makes up most of the idle time, by what the host did meanwhile.

    That is the one call that fills most of it, else the function that does.
    """
    gaps = analysis.gaps
    if gaps.start.size == 0:
        return []
    longest = int(np.argmax(gaps.end - gaps.start))
    length = int(gaps.end[longest] - gaps.start[longest])
    if length < _LONG_GAP * analysis.step_ns:
        return []
    row = analysis.host_event_during(int(gaps.start[longest]), int(gaps.end[longest]))
    if row < 0:
        return [f"One idle gap lasts {duration(length)}; the recording shows no host activity."]
    called = _ns_within(analysis, row, longest)
    where = _call(analysis, row) if called >= _ONE_CALL * length else ""
    where = where or _main_function(analysis, longest)
    return [f"One idle gap lasts {duration(length)}; meanwhile the host was {where}."] * bool(where)


def _ns_within(analysis: Analysis, row: int, gap: int) -> int:
    """Time of a gap in which a host event was the innermost one."""
    activity, gaps = analysis.activity, analysis.gaps
    mine = activity.row == row
    start = np.maximum(activity.start[mine], gaps.start[gap])
    end = np.minimum(activity.end[mine], gaps.end[gap])
    return int(np.maximum(end - start, 0).sum())


def _call(analysis: Analysis, row: int) -> str:
    """`in CALL (in OPERATOR) called from FUNCTION`; empty for a function of the program."""
    trace = analysis.trace
    node = int(trace.tree.node_of[row])
    if node >= 0 and trace.tree.user_frame[node] == node:
        return ""
    name = trace.names[trace.column("name_id")[row]]
    op = int(trace.links.op[row])
    inside = f" (in {trace.names[trace.column('name_id')[op]]})" if op not in (-1, row) else ""
    places = analysis.locations(np.array([row]))
    place = next((f" called from {p.function} ({p.file}:{p.line})" for p in places if p.file), "")
    return f"in {name}{inside}{place}"


def _main_function(analysis: Analysis, gap: int) -> str:
    """`in FUNCTION for TIME of it`: the program's function or named range that fills most.

    Empty when none fills a worthwhile part of the gap.
    """
    trace, tree, pieces = analysis.trace, analysis.trace.tree, analysis.pieces
    mine = (pieces.gap == gap) & (pieces.row >= 0)
    node = tree.node_of[pieces.row[mine]]
    ns = pieces.ns[mine][node >= 0]
    node = node[node >= 0]
    ranges = nearest(np.isin(tree.kind, (Kind.ANNOTATION, Kind.LOADER)), tree.parent)
    owner = np.where(tree.user_frame[node] >= 0, tree.user_frame[node], ranges[node])
    names = trace.column("name_id")[tree.rows[owner[owner >= 0]]]
    spent = np.bincount(names, weights=ns[owner >= 0])
    length = int(analysis.gaps.end[gap] - analysis.gaps.start[gap])
    if spent.max(initial=0) < _WORTH_NAMING * length:
        return ""
    main = int(spent.argmax())
    frame = tree.frames.get(main)
    name = f"{frame.function} ({frame.file}:{frame.line})" if frame else trace.names[main]
    return f"in {name} for {duration(int(spent[main]))} of it"


def _given_step(analysis: Analysis) -> list[str]:
    """Contradictions between the step time that the user gave and the recording."""
    real = analysis.options.real_step_ns
    if real is None:
        return []
    captured = analysis.trace.sidecar
    base = captured.baseline if captured else None
    if base and (base.ended_faults_ns or (base.step_ns == real and analysis.device is None)):
        return []  # it was measured: the budget says what the recorded steps lack
    given, busy = duration(real), analysis.busy_per_step_ns - analysis.waiting_per_step_ns
    problem = ""
    if real > 1.2 * analysis.step_ns:
        problem = f"longer than the recorded {duration(analysis.step_ns)}; profiling only adds time"
    elif real < 0.8 * busy:
        problem = f"shorter than the {duration(busy)} that the device works in a step"
    return [f"The given step time, {given}, is {problem}: is it the same step?"] if problem else []


def _foreign(analysis: Analysis) -> list[str]:
    """Nothing in the file is of a kind that torch's profiler writes."""
    kinds = np.unique(analysis.trace.column("kind"))
    if np.isin(kinds, (Kind.OTHER, Kind.DEVICE_OTHER)).all():
        tool = "the file is another tool's trace, or a newer format"
        return [f"No event is of a kind that torch.profiler records: {tool}."]
    return []


def _clocks(analysis: Analysis) -> list[str]:
    """How well several ranks could be put on one clock, if they could."""
    if not analysis.peers or analysis.comm.row.size == 0:
        return []
    matches, ranks = analysis.matches, len(analysis.ranks)
    text = (
        f"{ranks} ranks on one clock by the ends of {matches.count:,} common collectives; they "
        f"leave them within {duration(matches.residual_ns)} of each other."
    )
    if matches.count == 0:
        text = (
            f"No collective was found on two of the {ranks} ranks: each is judged by itself, and "
            "waiting for another rank cannot be told from transfer."
        )
    return [text]


_HOST_BOUND_ERROR = 0.10
"""What a replay may be off by where the host sets the pace."""
_BUSY = 0.7
"""With less device work in the step than this, the host sets it."""


def _replay(analysis: Analysis) -> list[str]:
    """The replay that gains come from does not reproduce the recording well."""
    error = analysis.replay_error
    bound = analysis.busy_per_step_ns < _BUSY * analysis.step_ns
    if error <= (_HOST_BOUND_ERROR if bound else TRUSTED_ERROR) or analysis.trace.steps.count < 2:
        return []
    text = f"Replaying the recording without a change is off by {percent(error)}:"
    return [f"{text} gains are given with as much more uncertainty."]


def notes_for(analysis: Analysis, job: Job) -> tuple[str, ...]:
    """What a reader should know about the recording before trusting the numbers."""
    notes = []
    notes.extend(_foreign(analysis))
    notes.extend(_given_step(analysis))
    notes.extend(_long_gap(analysis))
    if analysis.trace.cut_off:
        notes.append(
            "The file ends in the middle of the recording: activity of the device may be missing, "
            "so nothing is said about its absence."
        )
    elif analysis.device is None and analysis.coverage.launches == 0:
        notes.append("No device activity was recorded: the diagnosis speaks of the host alone.")
    notes.extend(_clocks(analysis))
    notes.extend(_replay(analysis))
    notes.extend(job.notes)
    notes.extend(f"{path}: skipped, {reason}" for path, reason in job.skipped)
    return tuple(notes)
