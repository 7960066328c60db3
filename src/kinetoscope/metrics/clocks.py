"""One clock for all ranks, from the ends of what they do together (M-16).

Ranks leave a joint collective within microseconds of each other, whenever they arrived. The
distance of those ends is the distance of their clocks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kinetoscope.trace.trace import IntArray

Flags = npt.NDArray[np.bool_]

_FEWEST_FOR_DRIFT = 10
"""Fewer ends than this tell no drift."""


def offsets(end: IntArray, present: Flags, group: IntArray) -> IntArray:
    """How far each rank's clock is ahead, ns; ranks without a common collective keep theirs.

    Within each process group a rank is ahead of the member with most collectives by the median
    distance of their ends. Over several groups (tensor and data parallel) the offsets follow by
    least squares, weighted by the number of collectives.

    Args:
        end: ends of the instances, ranks x instances, ns.
        present: which rank has which instance.
        group: process group of each instance, 0..G-1.
    """
    ranks = end.shape[0]
    rows: list[npt.NDArray[np.float64]] = []
    values: list[float] = []
    for g in np.unique(group).tolist():
        inside = present & (group == g)
        first = int(inside.sum(axis=1).argmax())
        for r in np.flatnonzero(inside.any(axis=1)).tolist():
            both = inside[first] & inside[r]
            if r == first or not both.any():
                continue
            weight = float(np.sqrt(both.sum()))
            row = np.zeros(ranks)
            row[r], row[first] = weight, -weight
            rows.append(row)
            values.append(weight * float(np.median(end[r, both] - end[first, both])))
    if not rows:
        return np.zeros(ranks, dtype=np.int64)
    # The shortest solution: ranks that are connected keep, on average, the time they were given.
    found = np.linalg.lstsq(np.stack(rows), np.array(values), rcond=None)[0]
    return np.asarray(np.rint(found), dtype=np.int64)


def middle(end: IntArray, present: Flags) -> IntArray:
    """Median end of each instance over the ranks that have it, as exact integers."""
    origin = int(end[present].min()) if present.any() else 0
    values = np.where(present, (end - origin).astype(np.float64), np.nan)
    return np.asarray(np.nanmedian(values, axis=0).astype(np.int64) + origin)


def residual(end: IntArray, present: Flags) -> tuple[int, float]:
    """Spread of the aligned ends (90 % of the instances) and the largest drift, ppm."""
    if end.shape[1] < 2:
        return 0, 0.0
    centre = middle(end, present)
    off = np.where(present, end - centre, 0)
    spread = int(np.percentile(np.abs(off).max(axis=0), 90))
    drift = 0.0
    at = (centre - centre[0]).astype(np.float64)
    if end.shape[1] >= _FEWEST_FOR_DRIFT and at.max() > 0:
        drift = max(abs(float(np.polyfit(at, row.astype(np.float64), 1)[0])) for row in off) * 1e6
    return spread, round(drift, 3)
