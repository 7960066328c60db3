"""Idle time of a device in pieces with a reason: what the budget counts, but where it happened."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.activity import Cause
from kinetoscope.metrics.budget import IDLE_LINES
from kinetoscope.metrics.idle import LONGEST_LATENCY_NS, SHORT_GAP_NS, host_blocked
from kinetoscope.metrics.ownership import owned_gaps
from kinetoscope.trace.trace import IntArray

WHOLE_BELOW_NS = 200_000
"""Gaps below this are one stretch, whatever the host did in them one after the other."""

_STRONG = (Cause.LOADER, Cause.COMPILE)


@dataclass(frozen=True)
class IdleStretches:
    """Stretches in time order; ns on the rank's own clock.

    Attributes:
        reason: index into `reasons`.
        row: host event meanwhile; -1: none.
        reasons: (budget class, label).
    """

    start: IntArray
    end: IntArray
    reason: IntArray
    row: IntArray
    reasons: tuple[tuple[str, str], ...]


class _Reasons:
    def __init__(self) -> None:
        self.index: dict[tuple[str, str], int] = {}

    def of(self, class_: str, label: str) -> int:
        return self.index.setdefault((class_, label), len(self.index))


def idle_stretches(analysis: Analysis) -> IdleStretches:
    """Idle time of the busiest device in the step window, neighbours of one reason joined."""
    return _joined(idle_pieces(analysis))


def idle_pieces(analysis: Analysis) -> IdleStretches:
    """The same time, each gap cut wherever the host turned to something else.

    A short gap has one reason; its pieces still have a host event each.
    """
    reasons = _Reasons()
    none = np.empty(0, dtype=np.int64)
    gaps = analysis.gaps
    if analysis.device is None or gaps.start.size == 0:
        return IdleStretches(none, none, none, none, ())
    pieces = analysis.pieces
    host = _host_reasons(analysis, reasons)
    left = gaps.end > gaps.host_end
    device = _device_reasons(analysis, reasons)[left]
    start = np.concatenate((pieces.start, gaps.host_end[left]))
    end = np.concatenate((pieces.end, gaps.end[left]))
    reason = np.concatenate((host, device))
    row = np.concatenate((pieces.row, np.full(device.size, -1, dtype=np.int64)))
    order = np.argsort(start, kind="stable")
    return _short_as_one(
        IdleStretches(start[order], end[order], reason[order], row[order], tuple(reasons.index))
    )


def gap_starts(idle: IdleStretches) -> npt.NDArray[np.bool_]:
    """Which of the stretches begin a gap: those that do not follow on the one before."""
    return np.append(True, idle.start[1:] > idle.end[:-1])[: idle.start.size]


def _short_as_one(idle: IdleStretches) -> IdleStretches:
    """Give all of a short gap its main reason."""
    if idle.start.size == 0:
        return idle
    new = gap_starts(idle)
    first = np.flatnonzero(new)
    gap = np.cumsum(new) - 1
    last = np.append(first[1:] - 1, idle.start.size - 1)
    length = idle.end[last] - idle.start[first]
    kinds = len(idle.reasons)
    weight = np.bincount(
        gap * kinds + idle.reason,
        weights=(idle.end - idle.start).astype(np.float64),
        minlength=first.size * kinds,
    )
    main = weight.reshape(-1, kinds).argmax(axis=1)
    reason = np.where(length[gap] < WHOLE_BELOW_NS, main[gap], idle.reason)
    return replace(idle, reason=reason)


def _joined(idle: IdleStretches) -> IdleStretches:
    """Neighbours of one reason as one stretch, with the host event of the longest of them."""
    if idle.start.size == 0:
        return idle
    begins = gap_starts(idle)
    begins[1:] |= idle.reason[1:] != idle.reason[:-1]
    head = np.flatnonzero(begins)
    tail = np.append(head[1:] - 1, idle.start.size - 1)
    return IdleStretches(
        idle.start[head], idle.end[tail], idle.reason[head], _longest(idle, head), idle.reasons
    )


def _longest(idle: IdleStretches, head: IntArray) -> IntArray:
    """Host event of the longest piece of each group."""
    bits = idle.start.size.bit_length()
    key = ((idle.end - idle.start) << bits) | np.arange(idle.start.size)
    longest = np.maximum.reduceat(key, head) & ((1 << bits) - 1)
    return np.asarray(idle.row[longest], dtype=np.int64)


def _host_reasons(analysis: Analysis, reasons: _Reasons) -> IntArray:
    """Reason of each piece; an owner of the whole gap outweighs the innermost event."""
    pieces = analysis.pieces
    by_cause = np.zeros(256, dtype=np.int64)
    for cause in np.unique(pieces.cause):
        by_cause[cause] = reasons.of(*IDLE_LINES[Cause(cause)])
    result = by_cause[pieces.cause]
    owners = owned_gaps(analysis.trace, analysis.gaps, pieces)
    if owners:
        owner = np.full(analysis.gaps.start.size, -1, dtype=np.int64)
        for gap, key in owners.items():
            owner[gap] = reasons.of(*key)
        mine = owner[pieces.gap]
        result = np.where((mine >= 0) & ~np.isin(pieces.cause, _STRONG), mine, result)
    return result


def _device_reasons(analysis: Analysis, reasons: _Reasons) -> IntArray:
    """Reason of what each gap lasts beyond the host's part; the cases of the budget."""
    gaps = analysis.gaps
    known = gaps.launch >= 0
    late = known & (gaps.host_end > gaps.start)
    rest = gaps.end - gaps.host_end
    blocked = host_blocked(analysis.activity, gaps)
    return np.select(
        [
            ~known,
            late & (rest < LONGEST_LATENCY_NS),
            ~late & (rest < SHORT_GAP_NS),
            blocked,
        ],
        [
            reasons.of("unattributed", "idle before work without a launch record"),
            reasons.of("framework", "launch latency"),
            reasons.of("framework", "between kernels"),
            reasons.of("framework", "host and device both waiting"),
        ],
        reasons.of("unattributed", "device waiting, its work already launched"),
    )
