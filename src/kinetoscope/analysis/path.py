"""The critical path of the median step, of one rank."""

from __future__ import annotations

from kinetoscope.analysis.core import Analysis
from kinetoscope.metrics.critical_path import StepPath, step_path
from kinetoscope.replay import timeline
from kinetoscope.result import CriticalPath, PathShare

MOST_PARTS = 30
LEAST_SHARE = 0.005
"""Of the step; nobody acts on less."""


def whole_path(analysis: Analysis) -> StepPath | None:
    """Return the critical path with all of its parts; None without a whole step."""
    found = timeline(analysis.model, deflate=analysis.deflations[0])
    return step_path(analysis.trace, analysis.activity, analysis.model, found)


def critical_path_of(analysis: Analysis) -> CriticalPath | None:
    """Return the critical path as the result shows it; None without a whole step."""
    path = whole_path(analysis)
    if path is None:
        return None
    large = [part for part in path.parts if part.ns >= LEAST_SHARE * path.step_ns]
    return CriticalPath(
        step_ns=path.step_ns,
        host_ns=sum(part.ns for part in path.parts if part.on_host),
        parts=tuple(
            PathShare(part.class_, part.name, "host" if part.on_host else "device", part.ns)
            for part in large[:MOST_PARTS]
        ),
    )
