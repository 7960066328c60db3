"""What the rules about copies to the device share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Intervals, clip, intersect, measure, union
from kinetoscope.metrics.transfers import Transfers
from kinetoscope.trace.kinds import CopyKind
from kinetoscope.trace.trace import IntArray

_WAITS_NS = 50_000
"""A copy call that takes the host longer than this, and most of the copy's time, waits for it."""
_PAGEABLE_SPEED = 0.5
"""Copies slower than this part of the link's speed come from pageable memory, when the recording
does not say (ROCm names both kinds alike)."""

Mask = npt.NDArray[np.bool_]


def exposed_copies(analysis: Analysis, rows: IntArray) -> Intervals:
    """The part of these copies in which the device neither computes nor communicates."""
    if analysis.device is None:
        return union(rows[:0], rows[:0])
    return intersect(analysis.extent(rows), analysis.device.exposed_memcpy)


def exposed_share(analysis: Analysis, exposed: Intervals) -> float:
    """Exposed copies as a share of the step."""
    seen = clip(exposed, *analysis.window)
    return measure(seen) / max(analysis.step_ns * analysis.steps, 1)


def from_pageable(copies: Transfers, speed: float) -> Mask:
    """Copies from pageable memory, by name, else by their speed and by who waits for them."""
    named = copies.kind == CopyKind.H2D_PAGEABLE
    reached = copies.bytes / np.maximum(copies.ns, 1) * 1e9
    slow = (reached < _PAGEABLE_SPEED * speed) & (copies.sync >= 0)
    return np.asarray(named | ((copies.kind == CopyKind.H2D_UNKNOWN) & slow))


def blocking(copies: Transfers) -> Mask:
    """Copies that the host waits for: from pageable memory, or with a wait right after."""
    return np.asarray((copies.kind == CopyKind.H2D_PAGEABLE) | (copies.sync >= 0))


def blocking_calls(analysis: Analysis, copies: Transfers, which: Mask) -> IntArray:
    """Calls in which the host waits for these copies: the copy itself or the sync after it."""
    dur = analysis.trace.column("dur_ns")
    call, sync = copies.call[which], copies.sync[which]
    waits = dur[np.maximum(call, 0)] > np.maximum(_WAITS_NS, copies.ns[which] // 2)
    rows = np.concatenate((sync[sync >= 0], call[(call >= 0) & waits]))
    return np.unique(rows)
