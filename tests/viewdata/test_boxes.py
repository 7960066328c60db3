"""Joining loses detail, never time and never an event."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kinetoscope.viewdata.boxes import Boxes, join, make_boxes, reduce

_EVENTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 500), st.integers(0, 90)),
    min_size=1,
    max_size=60,
)


def _boxes(raw: list[tuple[int, int, int, int]]) -> Boxes:
    """Events one after the other in each row: gap, then length."""
    at: dict[tuple[int, int], int] = {}
    rows = []
    for lane, row, gap, length in raw:
        start = at.get((lane, row), 0) + gap
        rows.append((lane, row, start, start + length))
        at[lane, row] = start + length
    lane, row, start, end = (np.array(c, dtype=np.int64) for c in zip(*rows, strict=True))
    number = np.arange(start.size, dtype=np.int64)
    return make_boxes(lane, row, start, end, number % 5, number)


def _sums(boxes: Boxes) -> dict[tuple[int, int], tuple[int, int]]:
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for lane, row, count, busy in zip(boxes.lane, boxes.row, boxes.count, boxes.busy, strict=True):
        events, time = found.get((int(lane), int(row)), (0, 0))
        found[int(lane), int(row)] = events + int(count), time + int(busy)
    return found


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(_EVENTS, st.integers(1, 400))
def test_each_row_keeps_its_events_and_their_time(
    raw: list[tuple[int, int, int, int]], limit: int
) -> None:
    boxes = _boxes(raw)
    joined = join(boxes, limit, None)
    assert _sums(joined) == _sums(boxes)
    assert np.all(joined.end - joined.start >= joined.busy)
    long = boxes.end - boxes.start >= limit
    assert set(boxes.event[long]) <= set(joined.event[joined.count == 1])


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(_EVENTS)
def test_the_longest_event_gives_the_name(raw: list[tuple[int, int, int, int]]) -> None:
    boxes = _boxes(raw)
    length = dict(zip(boxes.event.tolist(), (boxes.end - boxes.start).tolist(), strict=True))
    joined = join(boxes, 10_000, None)
    for start, end, lane, row, event in zip(
        joined.start, joined.end, joined.lane, joined.row, joined.event, strict=True
    ):
        inside = (
            (boxes.lane == lane) & (boxes.row == row) & (boxes.start >= start) & (boxes.end <= end)
        )
        assert length[int(event)] == max(length[int(e)] for e in boxes.event[inside])


def test_nothing_is_joined_in_the_kept_stretch() -> None:
    boxes = _boxes([(0, 0, 10, 5)] * 40)
    joined = join(boxes, 100, (150, 300))
    inside = (joined.start >= 150) & (joined.end <= 300)
    assert np.all(joined.count[inside] == 1)
    assert inside.sum() == ((boxes.start >= 150) & (boxes.end <= 300)).sum()
    assert joined.count.max() > 1


def test_a_reduction_says_what_it_joined_and_keeps_whole_steps() -> None:
    boxes = _boxes([(0, 0, 900, 100)] * 2000)
    edges = np.arange(0, 2_000_001, 100_000)
    reduced = reduce(boxes, 500, edges)
    assert len(reduced.boxes) <= 500
    assert reduced.limit_ns > 100
    assert reduced.joined == int(reduced.boxes.count[reduced.boxes.count > 1].sum())
    assert reduced.kept is not None
    assert set(reduced.kept) <= set(edges.tolist())
    assert int(reduced.boxes.count.sum()) == 2000


def test_few_boxes_stay_as_they_are() -> None:
    boxes = _boxes([(0, 0, 1, 1)] * 5)
    assert reduce(boxes, 5, np.array([0, 10])).boxes is boxes
