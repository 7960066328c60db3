"""Matching collectives over ranks; arrivals and waiting worked out by hand."""

from __future__ import annotations

import numpy as np

from kinetoscope.metrics.comm import Collectives, Message, collectives
from kinetoscope.metrics.ranks import match_ranks
from kinetoscope.testing import JobBuilder


def _list(
    spans: list[tuple[int, int]],
    sizes: list[int],
    *,
    seq: list[int] | None = None,
    orphans: int = 0,
    group_size: int = 2,
) -> Collectives:
    """Collectives with these spans (us); the first `orphans` have no arguments."""
    start = np.array([s for s, _ in spans], dtype=np.int64) * 1000
    end = np.array([e for _, e in spans], dtype=np.int64) * 1000
    messages = [Message("all_reduce", "Float", n, n, "0", group_size) for n in sizes]
    messages[:orphans] = [Message("all_reduce", recorded=False)] * orphans
    distinct = tuple(dict.fromkeys(messages))
    count = len(spans)
    return Collectives(
        row=np.arange(count),
        start=start,
        end=end,
        message=np.array([distinct.index(m) for m in messages], dtype=np.int64),
        seq=np.array(seq if seq else [-1] * count, dtype=np.int64),
        exposed=end - start,
        owner=np.zeros(count, dtype=np.int8),
        messages=distinct,
    )


def test_waiting_and_the_last_to_arrive() -> None:
    # Both leave at 20 and 40. Rank 1 arrives at 15 and 38, rank 0 at 10 and 35.
    first = _list([(10, 20), (35, 40), (70, 80)], [1, 2, 3])
    second = _list([(15, 20), (38, 40), (60, 80)], [1, 2, 3])
    found = match_ranks([first, second])
    assert found.count == 3
    assert found.intrinsic.tolist() == [5_000, 2_000, 10_000]
    assert found.waiting.tolist() == [[5_000, 3_000, 0], [0, 0, 10_000]]
    assert found.last.tolist() == [1, 1, 0]
    assert (found.caused(0), found.caused(1)) == (10_000, 8_000)
    assert found.residual_ns == 0


def test_lists_that_begin_with_different_collectives() -> None:
    first = _list([(0, 1), (10, 11), (20, 21), (30, 31)], [1, 2, 3, 1])
    second = _list([(12, 13), (22, 23), (32, 33), (42, 43)], [2, 3, 1, 2])
    found = match_ranks([first, second])
    pairs = sorted(zip(found.index[0].tolist(), found.index[1].tolist(), strict=True))
    assert pairs == [(1, 0), (2, 1), (3, 2)]


def test_kernels_from_before_the_recording_count_by_name() -> None:
    first = _list([(0, 1), (10, 11), (20, 21), (30, 31)], [0, 0, 2, 3], orphans=2)
    second = _list([(20, 21), (30, 31)], [2, 3])
    found = match_ranks([first, second])
    assert found.index[:, -2:].tolist() == [[2, 3], [0, 1]]


def test_equal_messages_are_told_apart_by_their_ends() -> None:
    # All messages alike, clocks 1 s apart: only a constant distance of the ends fits.
    ends = [10, 25, 32, 61, 70, 99]
    first = _list([(e - 2, e) for e in ends], [7] * 6)
    second = _list([(e - 1 + 10**6, e + 10**6) for e in ends[1:]], [7] * 5)
    found = match_ranks([first, second])
    assert found.index[0].tolist() == [1, 2, 3, 4, 5]
    assert int(found.clock[1] - found.clock[0]) == 10**9
    assert found.residual_ns == 0


def test_sequence_numbers_win() -> None:
    first = _list([(0, 1), (10, 11)], [5, 5], seq=[3, 4])
    second = _list([(10, 11), (20, 21)], [5, 5], seq=[4, 5])
    found = match_ranks([first, second])
    assert found.index.tolist() == [[1], [0]]


def test_bases_put_the_ranks_on_one_clock() -> None:
    first = _list([(10, 20), (30, 40), (50, 60)], [1, 2, 3])
    second = _list([(15, 20), (35, 40), (55, 60)], [1, 2, 3])
    found = match_ranks([first, second], [1_000_000, 5_000_000])
    assert found.start[0].tolist() != found.start[1].tolist()
    assert found.end[0].tolist() == found.end[1].tolist()
    # What is subtracted from each rank's own time brings the same end.
    assert (first.end - found.clock[0]).tolist() == (second.end - found.clock[1]).tolist()


def test_a_group_with_a_missing_member_is_not_complete() -> None:
    first = _list([(10, 20), (30, 40)], [1, 2], group_size=3)
    second = _list([(10, 20), (30, 40)], [1, 2], group_size=3)
    assert not match_ranks([first, second]).complete.any()
    assert match_ranks([first, second, first]).complete.all()


def test_ranks_that_do_not_fit_give_no_match() -> None:
    assert match_ranks([_list([(0, 1)] * 3, [1, 2, 3]), _list([(0, 1)] * 3, [4, 5, 6])]).count == 0
    assert match_ranks([_list([], []), _list([(0, 1)], [1])]).count == 0
    assert match_ranks([_list([], []), _list([], [])]).count == 0


def test_two_groups_are_matched_separately() -> None:
    job = JobBuilder(2)
    for rank, t in enumerate(job):
        t.step(0, 1000)
        for i in range(3):
            t.all_reduce(100 + 100 * i + rank, 50 - rank, elements=1 << i, launch_at=10 + 20 * i)
            t.all_reduce(
                120 + 100 * i,
                20,
                elements=8,
                launch_at=20 + 20 * i,
                group="1",
                group_size=2,
                stream=30,
            )
    found = match_ranks([collectives(trace) for trace in job.open().traces])
    assert found.count == 6
    assert found.present.all()


def _grouped(
    calls: list[tuple[int, int, str]], *, size: int = 2, clock: int = 0, named: bool = True
) -> Collectives:
    """Collectives (start, end, group) in us on a clock that is `clock` us ahead."""
    start = np.array([s + clock for s, _, _ in calls], dtype=np.int64) * 1000
    end = np.array([e + clock for _, e, _ in calls], dtype=np.int64) * 1000
    messages = [
        Message("all_reduce", "Float", 8, 8, group if named else "", size) for _, _, group in calls
    ]
    distinct = tuple(dict.fromkeys(messages))
    return Collectives(
        row=np.arange(len(calls)),
        start=start,
        end=end,
        message=np.array([distinct.index(m) for m in messages], dtype=np.int64),
        seq=np.full(len(calls), -1),
        exposed=end - start,
        owner=np.zeros(len(calls), dtype=np.int8),
        messages=distinct,
    )


_TENSOR_AND_DATA = [
    # rank 0 and 1, 2 and 3 are tensor parallel; 0 and 2, 1 and 3 data parallel.
    [(10, 30, "01"), (50, 70, "02"), (90, 95, "01")],
    [(28, 30, "01"), (60, 71, "13"), (91, 95, "01")],
    [(10, 12, "23"), (30, 70, "02"), (92, 99, "23")],
    [(11, 12, "23"), (33, 71, "13"), (95, 99, "23")],
]


def test_clocks_of_ranks_that_meet_in_different_groups() -> None:
    ahead = [0, 700, -400, 2_500]
    ranks = [_grouped(c, clock=k) for c, k in zip(_TENSOR_AND_DATA, ahead, strict=True)]
    found = match_ranks(ranks)
    assert found.count == 6
    # Only differences of clocks can be known.
    assert ((found.clock - found.clock[0]) // 1000).tolist() == ahead
    assert found.residual_ns == 0


def test_a_rank_of_another_group_is_never_late() -> None:
    found = match_ranks([_grouped(c) for c in _TENSOR_AND_DATA])
    for i in range(found.count):
        assert found.present[found.last[i], i]
        assert found.present[:, i].sum() == 2
    assert found.complete.all()
    assert np.unique(found.group).size == 4


def test_unnamed_groups_are_told_apart_by_who_leaves_together() -> None:
    # Two groups of two ranks without names: ends 30, 70, 95 and 42, 61, 99.
    first = [(10, 30, ""), (50, 70, ""), (90, 95, "")]
    second = [(11, 142, ""), (53, 361, ""), (90, 799, "")]
    ranks = [_grouped(c, named=False) for c in (first, second, first, second)]
    found = match_ranks(ranks)
    assert found.count == 6
    assert {tuple(np.flatnonzero(found.present[:, i]).tolist()) for i in range(6)} == {
        (0, 2),
        (1, 3),
    }


def test_unnamed_groups_that_cannot_be_told_apart_are_not_matched() -> None:
    same = [(10, 30, ""), (50, 70, ""), (90, 95, "")]
    assert match_ranks([_grouped(same, named=False)] * 4).count == 0


def test_kernels_from_before_the_recording_follow_the_numbered_ones() -> None:
    first = _list([(0, 1), (10, 11), (20, 21)], [0, 5, 5], seq=[-1, 3, 4], orphans=1)
    second = _list([(0, 1), (10, 11), (20, 21)], [5, 5, 5], seq=[2, 3, 4])
    found = match_ranks([first, second])
    assert found.index.tolist() == [[0, 1, 2], [0, 1, 2]]


def test_calls_of_a_coalesced_group_share_a_number() -> None:
    first = _list([(0, 1), (2, 3), (10, 11)], [5, 5, 5], seq=[3, 3, 4])
    found = match_ranks([first, first])
    assert found.index.tolist() == [[0, 1, 2], [0, 1, 2]]


def test_eight_ranks_with_shifted_windows_and_clocks() -> None:
    ends = [100 * i + 3 * (i**3 % 23) for i in range(20)]
    calls = [(e - 20, e, "all") for e in ends]
    ranks = [_grouped(calls[r : 20 - r], size=8, clock=1_000 * r) for r in range(8)]
    found = match_ranks(ranks)
    assert found.count == 18  # the first and the last one are on rank 0 alone
    assert ((found.clock - found.clock[0]) // 1000).tolist() == [1_000 * r for r in range(8)]
    # Ranks 0 to 7 all have the collectives 7 to 12.
    assert int(found.complete.sum()) == 6
