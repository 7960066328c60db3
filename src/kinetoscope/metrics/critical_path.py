"""What the critical path of a step consists of: host work, device work, latency (M-17).

The path partitions the step: shortening what is on it shortens the step, until another chain is
the longest; shortening anything else gains nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.activity import Activity, Cause
from kinetoscope.metrics.budget import IDLE_LINES, by_arithmetic
from kinetoscope.metrics.idle import Gaps, explain
from kinetoscope.replay.model import Model
from kinetoscope.replay.path import Path, Piece, critical_path
from kinetoscope.replay.timeline import Timeline, as_recorded
from kinetoscope.result.vocabulary import BudgetClass
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray, Trace

WHOLE_LABELS = {
    Piece.LAUNCH: "launch latency",
    Piece.HANDOVER: "between events that wait for each other",
}


@dataclass(frozen=True)
class PathPart:
    """Time on the path with one name.

    Attributes:
        class_: as in the budget.
        name: operator or kernel on the device; what the host does, else.
        on_host: host work, as opposed to the device's.
    """

    class_: BudgetClass
    name: str
    ns: int
    on_host: bool


@dataclass(frozen=True)
class StepPath:
    """The critical path of the median step; the parts sum to `step_ns`, longest first."""

    step_ns: int
    parts: tuple[PathPart, ...]


def step_path(trace: Trace, activity: Activity, model: Model, found: Timeline) -> StepPath | None:
    """Take the path of the median step apart; None without a whole step.

    Args:
        trace: the recording.
        activity: what its host threads did.
        model: its steady steps.
        found: their replay, without a change.
    """
    window = _median_step(found)
    if window is None:
        return None
    path = critical_path(model, found).within(*window)
    parts = _device_parts(trace, model, path) + _host_parts(trace, activity, (model, found), path)
    known = sum(part.ns for part in parts)
    rest = window[1] - window[0] - known
    if rest > 0:
        parts.append(PathPart("unattributed", "before the first recorded step", rest, False))
    return StepPath(window[1] - window[0], tuple(_added(parts)))


def _median_step(found: Timeline) -> tuple[int, int] | None:
    """The step of median length, on the timeline that sets the pace; the later of several."""
    host, device = np.diff(found.marks), np.diff(found.edges)
    slower = device.size and (not host.size or np.median(device) >= np.median(host))
    edges = found.edges if slower else found.marks
    length = np.diff(edges)
    if not length.size:
        return None
    usual = np.percentile(length, 50, method="lower")
    at = int(np.flatnonzero(length == usual)[-1])
    return int(edges[at]), int(edges[at + 1])


def _device_parts(trace: Trace, model: Model, path: Path) -> list[PathPart]:
    """Device work by operator (by kernel where none is known), latency as a whole."""
    ns = path.end - path.start
    parts = [
        PathPart("framework", label, int(ns[path.piece == piece].sum()), False)
        for piece, label in WHOLE_LABELS.items()
    ]
    mine = path.piece == Piece.DEVICE
    rows, spent = model.event_row[path.index[mine]], ns[mine]
    op = trace.links.op[rows]
    name = trace.column("name_id")[np.where(op >= 0, op, rows)]
    classes = _classes(trace, rows)
    for class_, number in {(c, n) for c, n in zip(classes, name.tolist(), strict=True)}:
        here = np.array([c == class_ for c in classes]) & (name == number)
        parts.append(PathPart(class_, trace.names[number], int(spent[here].sum()), False))
    return parts


def _classes(trace: Trace, rows: IntArray) -> list[BudgetClass]:
    kind = trace.column("kind")[rows]
    heavy = by_arithmetic(trace, rows)
    found: list[BudgetClass] = []
    for k, arithmetic in zip(kind.tolist(), heavy.tolist(), strict=True):
        if k == Kind.COLLECTIVE:
            found.append("communication")
        else:
            found.append("compute" if k == Kind.KERNEL and arithmetic else "memory")
    return found


def _host_parts(
    trace: Trace, activity: Activity, replay: tuple[Model, Timeline], path: Path
) -> list[PathPart]:
    """Host work by what the thread did, operators and functions of the program by name."""
    model, found = replay
    mine = np.flatnonzero(path.piece == Piece.HOST)[::-1]
    start, end = path.start[mine], path.end[mine]
    low, high = (as_recorded(model, found, at) for at in (start, end))
    high = np.maximum(high, low)
    row = model.call_row[path.index[mine]]
    thread = np.where(row >= 0, trace.column("thread")[np.maximum(row, 0)], trace.steps.thread)
    stretches = Gaps(low, high, row * 0 - 1, row, high, thread.astype(np.int64))
    pieces = explain(trace, activity, stretches)
    total = np.bincount(pieces.gap, weights=pieces.ns, minlength=mine.size)
    scale = (end - start) / np.maximum(total, 1.0)
    ns = pieces.ns * scale[pieces.gap]
    parts = [
        PathPart(*key, int(spent), True)
        for key, spent in _by_name(trace, pieces.row, pieces.cause, ns).items()
    ]
    missed = int((end - start)[total <= 0].sum())
    parts.append(PathPart("framework", IDLE_LINES[Cause.LAUNCH][1], missed, True))
    return _exact(parts, int((end - start).sum()))


def _by_name(
    trace: Trace, row: IntArray, cause: npt.NDArray[np.int8], ns: npt.NDArray[np.float64]
) -> dict[tuple[BudgetClass, str], float]:
    tree = trace.tree
    node = np.where(row >= 0, tree.node_of[np.maximum(row, 0)], -1) if tree.rows.size else row
    user = np.where(node >= 0, tree.user_frame[np.maximum(node, 0)], -1) if tree.rows.size else row
    named = np.where(
        (cause == Cause.PYTHON) & (user >= 0),
        tree.rows[np.maximum(user, 0)] if tree.rows.size else row,
        np.where(cause == Cause.OP, row, -1),
    )
    number = np.where(named >= 0, trace.column("name_id")[np.maximum(named, 0)], -1)
    both = np.stack((cause.astype(np.int64), number.astype(np.int64)), axis=1)
    kinds, which = np.unique(both, axis=0, return_inverse=True)
    total = np.bincount(which.ravel(), weights=ns, minlength=len(kinds))
    found: dict[tuple[BudgetClass, str], float] = {}
    for (c, n), spent in zip(kinds.tolist(), total.tolist(), strict=True):
        class_, label = IDLE_LINES[Cause(c)]
        key = class_, trace.names[n] if n >= 0 else label
        found[key] = found.get(key, 0.0) + spent
    return found


def _exact(parts: list[PathPart], total: int) -> list[PathPart]:
    """Rounding goes to the longest part."""
    if not parts:
        return parts
    parts = sorted(parts, key=lambda part: -part.ns)
    first = parts[0]
    over = total - sum(part.ns for part in parts)
    return [PathPart(first.class_, first.name, first.ns + over, first.on_host), *parts[1:]]


def _added(parts: list[PathPart]) -> list[PathPart]:
    total: dict[tuple[BudgetClass, str, bool], int] = {}
    for part in parts:
        key = part.class_, part.name, part.on_host
        total[key] = total.get(key, 0) + part.ns
    found = [PathPart(c, name, ns, host) for (c, name, host), ns in total.items() if ns > 0]
    return sorted(found, key=lambda part: (-part.ns, part.name))
