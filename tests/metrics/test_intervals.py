"""The interval library against a model that counts single nanoseconds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.metrics.intervals import (
    Coverage,
    Intervals,
    clip,
    complement,
    intersect,
    measure,
    merge,
    overlaps,
    points_in,
    subtract,
    union,
)

_MOMENT = st.integers(0, 40)
_RAW = st.lists(st.tuples(_MOMENT, _MOMENT), max_size=12)


def _set(raw: list[tuple[int, int]]) -> Intervals:
    return (
        np.array([a for a, _ in raw], dtype=np.int64),
        np.array([b for _, b in raw], dtype=np.int64),
    )


def _points(raw: list[tuple[int, int]]) -> set[int]:
    return {t for a, b in raw for t in range(a, b)}


def _covered(intervals: Intervals) -> set[int]:
    return _points(list(zip(intervals[0].tolist(), intervals[1].tolist(), strict=True)))


def _is_union(intervals: Intervals) -> bool:
    start, end = intervals
    return bool(np.all(end > start) and np.all(start[1:] > end[:-1]))


@given(_RAW)
def test_union_covers_the_same_moments(raw: list[tuple[int, int]]) -> None:
    merged = union(*_set(raw))
    assert _is_union(merged)
    assert _covered(merged) == _points(raw)
    assert measure(merged) == len(_points(raw))


@given(_RAW, _RAW)
def test_algebra_of_two_sets(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    left, right = union(*_set(a)), union(*_set(b))
    assert _covered(intersect(left, right)) == _points(a) & _points(b)
    assert _covered(subtract(left, right)) == _points(a) - _points(b)
    assert _covered(merge(left, right)) == _points(a) | _points(b)


@given(_RAW)
def test_moments_in_a_union(raw: list[tuple[int, int]]) -> None:
    at = np.arange(42)
    assert set(at[points_in(union(*_set(raw)), at)].tolist()) == _points(raw)


@given(_RAW, _MOMENT, _MOMENT)
def test_clip_and_complement(raw: list[tuple[int, int]], low: int, high: int) -> None:
    inside = set(range(low, high))
    merged = union(*_set(raw))
    assert _covered(clip(merged, low, high)) == _points(raw) & inside
    assert _covered(complement(merged, low, high)) == inside - _points(raw)


@given(_RAW, _RAW)
def test_overlaps_name_both_sides(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    left, right = _set(a), union(*_set(b))
    found = overlaps(left, right)
    expected = [
        (i, j, max(s, rs), min(e, re))
        for i, (s, e) in enumerate(a)
        for j, (rs, re) in enumerate(zip(*(x.tolist() for x in right), strict=True))
        if min(e, re) > max(s, rs)
    ]
    assert (
        list(
            zip(
                found.left.tolist(),
                found.right.tolist(),
                found.start.tolist(),
                found.end.tolist(),
                strict=True,
            )
        )
        == expected
    )


@given(_RAW, st.lists(st.tuples(_MOMENT, _MOMENT), min_size=1, max_size=8))
def test_coverage_of_many_ranges(raw: list[tuple[int, int]], ranges: list[tuple[int, int]]) -> None:
    low, high = _set(ranges)
    got = Coverage(union(*_set(raw))).between(low, high)
    points = _points(raw)
    assert got.tolist() == [len(points & set(range(a, b))) for a, b in ranges]


def test_large_times_stay_exact() -> None:
    base = 1_700_000_000_000_000_000
    start = np.array([base, base + 3], dtype=np.int64)
    end = np.array([base + 3, base + 4], dtype=np.int64)
    assert union(start, end)[1].tolist() == [base + 4]
    assert measure(union(start, end)) == 4
