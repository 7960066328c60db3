"""All interval arithmetic. Half-open intervals [start, end) of integer nanoseconds.

A *set* of intervals is a pair of int64 arrays (starts, ends), in any order and overlapping as
they like. A *union* is such a pair that is sorted, disjoint, without empty and without touching
intervals: the form that every function here returns, and the only one that `measure`, `subtract`,
`intersect` and `Coverage` accept. Intervals with end <= start are empty and vanish.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
Intervals = tuple[IntArray, IntArray]

_EMPTY = np.empty(0, dtype=np.int64)


def empty() -> Intervals:
    """The union without intervals."""
    return _EMPTY, _EMPTY


def union(start: IntArray, end: IntArray) -> Intervals:
    """Merge intervals; touching ones become one."""
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if start.size == 0:
        return empty()
    if np.any(start[1:] < start[:-1]):
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.empty(start.size, dtype=bool)
    first[0] = True
    np.greater(start[1:], reach[:-1], out=first[1:])
    last = np.append(np.flatnonzero(first)[1:] - 1, start.size - 1)
    return start[first].astype(np.int64), reach[last].astype(np.int64)


def merge(*sets: Intervals) -> Intervals:
    """The union of several sets."""
    if not sets:
        return empty()
    return union(np.concatenate([s for s, _ in sets]), np.concatenate([e for _, e in sets]))


def measure(intervals: Intervals) -> int:
    """Total length of a union, ns."""
    start, end = intervals
    return int((end - start).sum())


def clip(intervals: Intervals, low: int, high: int) -> Intervals:
    """The part of a union inside [low, high)."""
    start, end = intervals
    first = int(np.searchsorted(end, low, side="right"))
    last = int(np.searchsorted(start, high, side="left"))
    if first >= last or high <= low:
        return empty()
    return np.maximum(start[first:last], low), np.minimum(end[first:last], high)


def complement(intervals: Intervals, low: int, high: int) -> Intervals:
    """The gaps of a union inside [low, high)."""
    if high <= low:
        return empty()
    start, end = clip(intervals, low, high)
    gap_start = np.concatenate(([low], end)).astype(np.int64)
    gap_end = np.concatenate((start, [high])).astype(np.int64)
    keep = gap_end > gap_start
    return gap_start[keep], gap_end[keep]


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """What two unions have in common."""
    pieces = overlaps(a, b)
    if pieces.start.size == 0:
        return empty()
    return pieces.start, pieces.end


def points_in(intervals: Intervals, at: IntArray) -> npt.NDArray[np.bool_]:
    """Which moments lie in a union."""
    start, end = intervals
    index = np.searchsorted(start, at, side="right") - 1
    return np.asarray((index >= 0) & (at < np.append(end, 0)[index]))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """What of union `a` is not in union `b`."""
    if a[0].size == 0 or b[0].size == 0:
        return a
    low, high = int(a[0][0]), int(a[1][-1])
    return intersect(a, complement(b, low, high))


@dataclass(frozen=True)
class Overlaps:
    """Every non-empty intersection of an interval of `a` with one of `b`.

    `left` and `right` are the positions in a and b; start and end bound the common part.
    """

    left: IntArray
    right: IntArray
    start: IntArray
    end: IntArray


def overlaps(a: Intervals, b: Intervals) -> Overlaps:
    """Pair up two lists of intervals.

    `b` must be sorted and disjoint (touching is fine); `a` may be anything. The result is
    ordered by position in `a`, then in `b`.
    """
    a_start, a_end = a
    b_start, b_end = b
    first = np.searchsorted(b_end, a_start, side="right")
    stop = np.searchsorted(b_start, a_end, side="left")
    counts = np.maximum(stop - first, 0)
    counts[a_end <= a_start] = 0
    left = np.repeat(np.arange(a_start.size, dtype=np.int64), counts)
    total = int(counts.sum())
    offset = np.repeat(np.cumsum(counts) - counts, counts)
    right = np.repeat(first, counts) + np.arange(total, dtype=np.int64) - offset
    start = np.maximum(a_start[left], b_start[right])
    end = np.minimum(a_end[left], b_end[right])
    keep = end > start
    return Overlaps(left[keep], right[keep], start[keep], end[keep])


class Coverage:
    """Answers "how much of [low, high) does this union cover?" for many ranges at once."""

    def __init__(self, intervals: Intervals) -> None:
        self._start, self._end = intervals
        self._before = np.concatenate(([0], np.cumsum(self._end - self._start)))

    def _upto(self, at: IntArray) -> IntArray:
        index = np.searchsorted(self._start, at, side="right")
        covered = self._before[index]
        inside = index > 0
        over = np.zeros(at.shape, dtype=np.int64)
        over[inside] = np.maximum(self._end[index[inside] - 1] - at[inside], 0)
        return np.asarray(covered - over, dtype=np.int64)

    def between(self, low: IntArray, high: IntArray) -> IntArray:
        """Covered ns of each range; 0 where high <= low."""
        low = np.asarray(low, dtype=np.int64)
        high = np.maximum(np.asarray(high, dtype=np.int64), low)
        return self._upto(high) - self._upto(low)
