"""A change to the program, in the terms of the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kinetoscope.metrics.intervals import Intervals, empty, merge, subtract
from kinetoscope.trace.trace import IntArray

Rows = tuple[IntArray, IntArray]
"""Event-table rows and a time for each, ns."""


@dataclass(frozen=True)
class Change:
    """What a fix does to the recording. All parts may be combined.

    Attributes:
        host_cut: stretches of host time that the fix removes (a union, ns).
        host_cut_factor: which part of `host_cut` goes away, 0..1.
        unblock: rows of calls that no longer wait for the device (the call itself stays, as a
            short one).
        drop_calls: rows of calls that disappear with the device events they launch.
        durations: new duration of device events, as (rows, ns).
        transfers: new cost of collectives without waiting, as (rows, ns). Replayed alone, a rank
            keeps the waiting that was recorded; replayed with the others, it follows from them.
        step_floor_ns: the step cannot become shorter than this (loader service time, link time).
        extra_host_ns: host time that the fix adds to each step.
        more_cuts: further stretches with a part each, for changes that were put together.
    """

    host_cut: Intervals = field(default_factory=empty)
    host_cut_factor: float = 1.0
    unblock: IntArray | None = None
    drop_calls: IntArray | None = None
    durations: Rows | None = None
    transfers: Rows | None = None
    step_floor_ns: int = 0
    extra_host_ns: int = 0
    more_cuts: tuple[tuple[Intervals, float], ...] = ()

    @property
    def layers(self) -> list[tuple[Intervals, float]]:
        """Disjoint stretches of host time and the part of each that goes away.

        Where cuts overlap, the largest part counts: time is removed once.
        """
        cuts = [c for c in ((self.host_cut, self.host_cut_factor), *self.more_cuts) if c[0][0].size]
        found: list[tuple[Intervals, float]] = []
        taken = empty()
        for part in sorted({part for _, part in cuts}, reverse=True):
            own = merge(*(cut for cut, other in cuts if other == part))
            found.append((subtract(own, taken), part))
            taken = merge(taken, own)
        return [(cut, part) for cut, part in found if cut[0].size and part > 0]


def combined(changes: Iterable[Change]) -> Change:
    """All changes at once; what several of them remove goes away once."""
    changes = tuple(changes)
    if len(changes) == 1:
        return changes[0]
    return Change(
        unblock=_joined([c.unblock for c in changes]),
        drop_calls=_joined([c.drop_calls for c in changes]),
        durations=_durations(changes),
        transfers=_times([c.transfers for c in changes]),
        step_floor_ns=max((c.step_floor_ns for c in changes), default=0),
        extra_host_ns=sum(c.extra_host_ns for c in changes),
        more_cuts=tuple(cut for c in changes for cut in c.layers),
    )


def _joined(rows: Sequence[IntArray | None]) -> IntArray | None:
    known = [r for r in rows if r is not None and r.size]
    return np.unique(np.concatenate(known)) if known else None


def _durations(changes: Sequence[Change]) -> Rows | None:
    """The shortest time of each event; what stands for a fused group keeps the group's time."""
    fused = _times([c.durations for c in changes if c.drop_calls is not None])
    single = _times([c.durations for c in changes if c.drop_calls is None])
    if fused is None or single is None:
        return fused or single
    other = ~np.isin(single[0], fused[0])
    return (
        np.concatenate((fused[0], single[0][other])),
        np.concatenate((fused[1], single[1][other])),
    )


def _times(parts: Sequence[Rows | None]) -> Rows | None:
    """The shortest time that any change gives a row."""
    known = [p for p in parts if p is not None and p[0].size]
    if not known:
        return None
    rows = np.concatenate([p[0] for p in known])
    ns = np.concatenate([p[1] for p in known])
    order = np.lexsort((ns, rows))
    first = np.append(True, np.diff(rows[order]) > 0)
    return rows[order][first], ns[order][first]
