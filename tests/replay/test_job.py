"""Ranks replayed together: who waits for whom follows from the arrivals, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kinetoscope.analysis import Analysis
from kinetoscope.replay import Change
from kinetoscope.testing import JobBuilder, TraceBuilder
from kinetoscope.trace.kinds import Kind

_STEP = 10_000_000


def _work(t: TraceBuilder, kernel: int, *, ranks: int, first: int = 0, late: int = 0) -> None:
    """Kernel, all-reduce until 9,700 us, a wait for it until 9,720, 280 us of host work.

    The rank that computes 9,000 us is the last one to arrive: 595 us are transfer.
    """
    for step in range(first, first + 4):
        at = step * 10_000 + late
        t.step(at, 10_000)
        t.kernel("gemm", at + 100, kernel, launch_at=at + 50, op="aten::mm")
        t.all_reduce(
            at + 105 + kernel,
            9_595 - kernel,
            launch_at=at + 70,
            elements=1 + step,
            group_size=ranks,
        )
        t.sync(at + 120, 9_600)


def _analyses(*kernels: int, first: tuple[int, ...] = (), late: int = 0) -> list[Analysis]:
    job = JobBuilder(len(kernels))
    for rank, kernel in enumerate(kernels):
        start = first[rank] if first else 0
        shift = late if rank == 1 else 0
        _work(job.rank(rank), kernel, ranks=len(kernels), first=start, late=shift)
    found = [Analysis(trace) for trace in job.open().traces]
    for analysis in found:
        analysis.peers = tuple(a for a in found if a is not analysis)
    return found


def _kernels(analysis: Analysis, us: int) -> Change:
    rows = analysis.rows(Kind.KERNEL)
    return Change(durations=(rows, np.full(rows.size, us * 1000, dtype=np.int64)))


def _step_ns(analysis: Analysis, changes: dict[int, Change]) -> float:
    assert analysis.what_if.job is not None
    return analysis.what_if.job_ns(changes, 0.0)


@pytest.mark.parametrize("rank", [0, 1])
def test_without_a_change_both_ranks_show_the_recorded_step(rank: int) -> None:
    assert _step_ns(_analyses(5_000, 9_000)[rank], {}) == _STEP


@pytest.mark.parametrize(("left_us", "step_us"), [(7_000, 8_000), (5_000, 6_000), (1_000, 6_000)])
def test_the_late_rank_speeds_the_job_up_until_the_other_is_last(
    left_us: int, step_us: int
) -> None:
    """100 + kernel + 5 us to the arrival, 595 of transfer, 20 and 280 on the host."""
    quick, slow = _analyses(5_000, 9_000)
    for analysis in (quick, slow):
        assert _step_ns(analysis, {1: _kernels(slow, left_us)}) == step_us * 1000


def test_a_rank_that_waits_anyway_gains_nothing() -> None:
    quick, _ = _analyses(5_000, 9_000)
    assert _step_ns(quick, {0: _kernels(quick, 1_000)}) == _STEP


def test_a_shorter_transfer_shortens_every_rank() -> None:
    quick, slow = _analyses(5_000, 9_000)
    rows = slow.comm.row
    half = Change(transfers=(rows, np.full(rows.size, 95_000, dtype=np.int64)))
    assert _step_ns(quick, {1: half}) == _STEP - 500_000


def test_of_three_ranks_the_last_sets_the_pace() -> None:
    analyses = _analyses(5_000, 7_000, 9_000)
    assert _step_ns(analyses[0], {2: _kernels(analyses[2], 1_000)}) == 8_000_000


def test_windows_that_begin_at_different_steps_are_joined() -> None:
    quick, slow = _analyses(5_000, 9_000, first=(0, 1))
    assert _step_ns(quick, {1: _kernels(slow, 5_000)}) == 6_000_000


def test_clocks_that_differ_do_not_matter() -> None:
    quick, slow = _analyses(5_000, 9_000, late=3_333)
    assert _step_ns(quick, {}) == _STEP
    assert _step_ns(slow, {1: _kernels(slow, 5_000)}) == 6_000_000


def test_a_collective_that_one_rank_no_longer_makes_joins_nobody() -> None:
    """Rank 1 then sets the pace alone: 9,105 us to the end of its work, 20 and 280 on the host."""
    quick, slow = _analyses(5_000, 9_000)
    launches = slow.trace.links.launch[slow.comm.row]
    gone = Change(drop_calls=launches)
    assert _step_ns(quick, {1: gone}) == 9_405_000


def test_one_rank_or_ranks_that_do_not_fit_are_not_joined() -> None:
    (alone,) = _analyses(5_000)
    assert alone.what_if.job is None
