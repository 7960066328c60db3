"""Calls of the caching allocator into the driver during the steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.trace.frames import (
    is_empty_cache_frame,
    is_host_memory_call,
    is_stream_ordered_call,
)
from kinetoscope.trace.kinds import RUNTIME_KINDS, Kind
from kinetoscope.trace.trace import IntArray


@dataclass(frozen=True)
class DriverCalls:
    """Rows of calls in the steady steps, in time order.

    Attributes:
        taken: calls that take device memory from the driver.
        returned: calls that give it back.
        waits: synchronisations right before a call that gives memory back.
        flushes: frames of `empty_cache()`.
        steps: number of steady steps.
    """

    taken: IntArray
    returned: IntArray
    waits: IntArray
    flushes: IntArray
    steps: int


def driver_calls(analysis: Analysis) -> DriverCalls:
    """Find the allocator's calls into the driver."""
    returned = _calls(analysis, Kind.FREE_CALL, is_stream_ordered_call)
    return DriverCalls(
        taken=_calls(analysis, Kind.ALLOC_CALL),
        returned=returned,
        waits=_waits_before(analysis, returned),
        flushes=analysis.in_steps(analysis.matching(is_empty_cache_frame)),
        steps=analysis.steps_on_host,
    )


def _calls(
    analysis: Analysis, kind: Kind, unless: Callable[[str], bool] = is_host_memory_call
) -> IntArray:
    rows = analysis.in_steps(analysis.rows(kind))
    names = (analysis.trace.names[i] for i in analysis.trace.column("name_id")[rows])
    keep = [not is_host_memory_call(name) and not unless(name) for name in names]
    return np.asarray(rows[np.array(keep, dtype=bool)])


def _waits_before(analysis: Analysis, returned: IntArray) -> IntArray:
    """The device synchronisation with which the allocator makes sure that memory is unused."""
    trace = analysis.trace
    calls = analysis.rows(*RUNTIME_KINDS)
    at = np.searchsorted(calls, returned)
    before = calls[np.maximum(at - 1, 0)]
    same = trace.column("thread")[before] == trace.column("thread")[returned]
    wait = (at > 0) & same & (trace.column("kind")[before] == Kind.SYNC_CALL)
    return np.unique(before[wait])


def steps_with(analysis: Analysis, rows: IntArray, least: int = 1) -> float:
    """Share of the steady steps after the first one that hold at least so many of the rows."""
    steady = np.asarray(analysis.times.steady)
    step = analysis.trace.steps.of(analysis.trace.column("ts_ns")[rows])
    counts = np.bincount(step[step >= 0], minlength=analysis.trace.steps.count)[steady]
    later = counts[1:] if counts.size > 1 else counts
    return float((later >= least).mean()) if later.size else 0.0
