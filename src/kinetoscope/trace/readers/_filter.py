"""Which events enter the table, and in which order."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.readers import _times
from kinetoscope.trace.readers._columns import Merged
from kinetoscope.trace.readers._kinds import RowKinds
from kinetoscope.trace.readers._repair import Repairs

Array = npt.NDArray[Any]

_FAR_NS = 3_600_000_000_000
"""An event at or before time zero is out of place when the others are an hour later."""


def ordered_rows(merged: Merged, kinds: RowKinds, repairs: Repairs) -> Array:
    """Rows of the events to keep, sorted by (start, longer first, file order).

    Left out and counted: no time, negative length (a record whose end was never written), start
    and length both zero (never written, or before the profiler's base), zero while the rest is
    hours away. The profiler's own marks are left out without a word.
    """
    ts, dur = merged.values("ts"), merged.values("dur")
    keep = ~kinds.housekeeping
    at_zero = (ts == 0) & (dur == 0)
    _drop(keep, (ts == _times.NO_TIME) | (dur == _times.NO_TIME), "no_time", repairs)
    _drop(keep, dur < 0, "negative_duration", repairs)
    _drop(keep, at_zero & (kinds.kind >= Kind.KERNEL), "zero_time_device", repairs)
    _drop(keep, at_zero, "zero_time", repairs)
    if keep.any():
        middle = np.median(ts[keep]) if (ts[keep] <= 0).any() else 0
        _drop(keep, (ts <= 0) & (middle > _FAR_NS), "out_of_range", repairs)
    return _sorted(np.flatnonzero(keep), ts, dur)


_WHY = {
    "no_time": "events without a readable time",
    "negative_duration": "events that end before they start",
    "zero_time_device": "device events at time zero without a length: their times were lost",
    "zero_time": "events at time zero without a length",
    "out_of_range": "events at time zero, hours before all others",
}


def _drop(keep: Array, bad: Array, kind: str, repairs: Repairs) -> None:
    count = int(np.count_nonzero(keep & bad))
    if count:
        keep &= ~bad
        repairs.add(kind, _WHY[kind], count)


def _sorted(rows: Array, ts: Array, dur: Array) -> Array:
    order = rows[np.argsort(ts[rows], kind="stable")]
    times = ts[order]
    same = times[1:] == times[:-1]
    if not same.any():
        return order
    tied = np.zeros(len(order), dtype=bool)
    tied[1:] |= same
    tied[:-1] |= same
    places = np.flatnonzero(tied)
    among = order[places]
    order[places] = among[np.lexsort((-dur[among], ts[among]))]
    return order
