"""Which rank keeps the others waiting in the end; worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kinetoscope.metrics.blame import blame, by_owner
from kinetoscope.metrics.ranks import Matches


def _matches(calls: list[tuple[int, dict[int, int], int]], ranks: int) -> Matches:
    """Instances (group, {rank: start}, end), ns, in the order of their ends."""
    count = len(calls)
    start = np.zeros((ranks, count), dtype=np.int64)
    index = np.full((ranks, count), -1, dtype=np.int64)
    end = np.zeros((ranks, count), dtype=np.int64)
    for i, (_, starts, stop) in enumerate(calls):
        for r, at in starts.items():
            start[r, i], end[r, i], index[r, i] = at, stop, i
    return Matches(
        index=index,
        start=start,
        end=end,
        clock=np.zeros(ranks, dtype=np.int64),
        residual_ns=0,
        drift_ppm=0.0,
        complete=np.ones(count, dtype=bool),
        group=np.array([g for g, _, _ in calls], dtype=np.int64),
    )


def test_the_last_to_arrive_causes_the_waiting() -> None:
    # Transfer 10: rank 0 waits 30 for rank 1; then rank 1 waits 5 for rank 0.
    found = _matches([(0, {0: 0, 1: 30}, 40), (0, {0: 65, 1: 60}, 75)], 2)
    assert blame(found, found.waiting).caused.tolist() == [5, 30]


def test_a_delay_that_is_passed_on_stays_with_its_cause() -> None:
    # Ranks 0, 1 tensor parallel (group 0); 0, 2 data parallel (group 1), all transfers 10 ns.
    # Rank 0 waits 100 for rank 1, so it reaches rank 2 at 120; rank 2 is there at 15.
    found = _matches([(0, {0: 0, 1: 100}, 110), (1, {0: 120, 2: 15}, 130)], 3)
    result = blame(found, found.waiting)
    # Rank 2 waits 105: 100 of that because rank 0 waited for rank 1, 5 for rank 0 itself.
    assert result.caused.tolist() == [5, 200, 0]
    instance, cause, part = result.parts[2]
    assert instance.tolist() == [1, 1]
    assert cause.tolist() == [0, 1]
    assert part.tolist() == pytest.approx([5 / 105, 100 / 105])


def test_waiting_that_both_did_is_not_passed_on() -> None:
    # Ranks 0 and 2 both wait 50 in their own groups; what rank 0 comes later is its own.
    calls = [
        (0, {0: 0, 1: 50}, 60),
        (2, {2: 0, 3: 50}, 60),
        (1, {0: 100, 2: 70}, 110),
    ]
    found = _matches(calls, 4)
    assert blame(found, found.waiting).caused.tolist() == [30, 50, 0, 50]


def test_nobody_waits_for_itself() -> None:
    # Rank 1 waits for rank 0, then rank 0 waits for rank 1, which was held up by rank 0 alone.
    calls = [(0, {0: 40, 1: 0}, 50), (1, {0: 60, 1: 90}, 100)]
    found = _matches(calls, 2)
    assert blame(found, found.waiting).caused.tolist() == [40, 30]


def test_hidden_waiting_delays_nobody() -> None:
    found = _matches([(0, {0: 0, 1: 100}, 110), (1, {0: 120, 2: 15}, 130)], 3)
    exposed = found.waiting.copy()
    exposed[0, 0] = 0  # compute ran meanwhile
    assert blame(found, exposed).caused.tolist() == [105, 0, 0]


def test_stretches_that_overlap_count_once() -> None:
    within = np.array([0]), np.array([100])
    stretches = np.array([10, 20, 60]), np.array([40, 50, 70])
    found = by_owner(within, stretches, np.array([1, 2, 2]))
    assert {k: (s.tolist(), e.tolist()) for k, (s, e) in found.items()} == {
        1: ([10], [40]),
        2: ([40, 60], [50, 70]),
    }
