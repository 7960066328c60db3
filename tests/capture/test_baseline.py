"""What a step costs by a baseline in two halves; every expectation is computed by hand."""

from __future__ import annotations

import sys
from dataclasses import replace
from threading import Thread

import pytest

from kinetoscope.capture.baseline import (
    Baseline,
    Timed,
    change,
    faults_changed,
    summary,
    told,
)
from kinetoscope.capture.memory_faults import Faults

MS = 1_000_000


def _timed(*periods_ms: int) -> Timed:
    host = tuple(p * MS for p in periods_ms)
    return Timed(elapsed=sum(host), host=host, cpu=sum(host) // 2)


def test_the_mean_of_equal_steps() -> None:
    found = summary([_timed(*[10] * 20)])
    assert found["steps"] == 20
    assert found["step_ns"] == 10 * MS
    assert (found["low_ns"], found["high_ns"]) == (10 * MS, 10.05 * MS)  # no step was shorter
    assert found["process_cpu_ns"] == 5 * MS


def test_a_device_that_works_on_after_the_last_mark_counts() -> None:
    timed = Timed(elapsed=100 * MS, host=(1 * MS,) * 10, device=(10 * MS,) * 10)
    assert summary([timed])["step_ns"] == 10 * MS
    assert summary([timed])["device_median_ns"] == 10 * MS
    assert summary([timed])["host_median_ns"] == 1 * MS


def test_marks_are_not_the_programs_time() -> None:
    """Ten steps of 1 ms, 50 µs of each in a mark."""
    timed = Timed(elapsed=10 * MS, host=(1 * MS,) * 10, marks=10 * 50_000)
    assert summary([timed])["step_ns"] == 950_000


def test_a_mark_counts_from_the_first_step_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter((100, 200, 300))
    monkeypatch.setattr("kinetoscope.capture.baseline.time.perf_counter_ns", lambda: next(now))
    baseline = Baseline(device=False)
    baseline.start()  # at 100
    baseline.marked(60, 110)  # began before the first step: 10 of it count
    baseline.next_step()  # at 200
    baseline.marked(195, 205)
    baseline.next_step()  # at 300
    timed = baseline.stop()
    assert timed is not None
    assert (timed.elapsed, timed.marks) == (200, 20)


def test_an_interruption_within_a_mark_is_not_the_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 100_000, 10_000))
    monkeypatch.setattr("kinetoscope.capture.baseline.time.perf_counter_ns", lambda: next(now))
    baseline = Baseline(device=False)
    baseline.start()
    for took in (50, 60, 5_000, 50, 50):
        baseline.next_step()
        baseline.marked(10_000, 10_000 + took)
    timed = baseline.stop()
    assert timed is not None
    assert (timed.elapsed, timed.marks) == (50_000, 250)


def test_a_checkpoint_in_every_third_step_counts_by_whole_cycles() -> None:
    """Seven slow ones of nineteen would be 105 ms a step; it is (2 + 2 + 281) / 3."""
    found = summary([_timed(*([281, 2, 2] * 6), 281)])
    assert found["step_ns"] == 95 * MS
    assert found["low_ns"] == pytest.approx(94.5 * MS, abs=MS)
    assert found["high_ns"] == pytest.approx(95.5 * MS, abs=MS)


def test_an_epoch_longer_than_the_full_window_is_told() -> None:
    timed = _timed(*([2] * 10 + [202] + [2] * 24 + [202] + [2] * 24 + [202] + [2] * 5))
    assert timed.step_ns == 10 * MS  # 24 steps of 2 ms and one of 202 ms
    text = "every 25 steps one takes 200 ms longer, as at the start of an epoch or for a checkpoint"
    assert told([timed], 20)[0].startswith(f"{text}: 80 % of the stated step time; the 20 steps of")
    assert told([timed], 25) == []


def test_one_long_pause_is_left_out_and_told() -> None:
    timed = _timed(*([2] * 40), 3002, *([2] * 40))
    found = summary([timed])
    assert found["step_ns"] == 2 * MS
    assert "one of 81 steps took 3.00 s longer than the others" in told([timed], 20)[0]


def test_one_slow_step_of_few_counts_and_widens_the_range() -> None:
    found = summary([_timed(1, 1, 96, 1, 1)])
    assert found["step_ns"] == 20 * MS
    assert (found["low_ns"], found["high_ns"]) == (1 * MS, 39 * MS)


def test_steps_that_scatter_have_no_rhythm() -> None:
    timed = _timed(*([10, 12, 9, 35, 11, 10, 13, 9, 31, 10] * 2))
    assert not timed.rhythm.slow
    assert timed.step_ns == 15 * MS
    assert told([timed], 20) == []


def test_the_range_never_reaches_below_the_fastest_step() -> None:
    assert summary([_timed(2, 281, 2, 300, 2, 290)])["low_ns"] >= 2 * MS


def test_both_halves_count_by_their_steps_and_the_range_covers_both() -> None:
    found = summary([_timed(*[10] * 30), _timed(*[14] * 10)])
    assert (found["steps"], found["step_ns"]) == (40, 11 * MS)
    assert (found["low_ns"], found["high_ns"]) == (10 * MS, 14 * MS)
    assert found["halves"] == [
        {"steps": 30, "step_ns": 10 * MS, "process_cpu_ns": 5 * MS},
        {"steps": 10, "step_ns": 14 * MS, "process_cpu_ns": 7 * MS},
    ]


def test_a_pace_that_changed_is_told() -> None:
    slower = [_timed(*[10] * 30), _timed(*[14] * 30)]
    assert change(*slower) == pytest.approx(0.4)
    (text,) = told(slower, 20)
    assert text.startswith("the program's pace changed by +40 % during the capture: 10.0 ms a step")
    assert text.endswith("before the windows, 14.0 ms after them")
    (text,) = told([_timed(*[10] * 30), _timed(*[500] * 3)], 20)
    assert text.startswith("the program's pace changed 50 times during the capture: 10.0 ms a step")


def test_scatter_is_no_change_of_pace() -> None:
    assert change(_timed(*[10] * 30), _timed(*[10, 11] * 15)) == 0.0  # 5 % is too little
    wild = [5, 30, 12, 60, 7, 20]
    assert change(_timed(*wild), _timed(*[p + 4 for p in wild])) == 0.0


def test_nothing_timed_is_nothing_stated() -> None:
    assert summary([]) == {}
    baseline = Baseline(device=False)
    assert baseline.stop() is None
    baseline.start()
    assert baseline.stop() is None
    baseline.next_step()
    timed = baseline.stop()
    assert timed is not None
    assert timed.steps == 1
    assert timed.elapsed == timed.host[0]


def _faulting(period_ms: int, steps: int, faults: int) -> Timed:
    timed = _timed(*[period_ms] * steps)
    return replace(timed, faults=Faults(faults * steps, 2 * MS * steps))


def test_faults_that_end_with_the_windows_leave_the_first_half() -> None:
    """9,734 faults of half a microsecond are 4.9 ms: enough of 100 ms to be why steps differ."""
    halves = [_faulting(100, 10, 9_734), _faulting(16, 60, 2)]
    found = summary(halves)
    assert (found["steps"], found["step_ns"]) == (10, 100 * MS)
    assert (found["low_ns"], found["high_ns"]) == (100 * MS, 100.5 * MS)
    assert found["halves"][1] == {
        "steps": 60,
        "step_ns": 16 * MS,
        "process_cpu_ns": 8 * MS,
        "minor_faults": 2,
        "system_cpu_ns": 2 * MS,
    }
    (text,) = told(halves, 20)
    assert text.startswith("recording changed what the C library does with freed memory: 9,734 ")
    assert text.endswith("2 and 16.0 ms after them; the stated step time is the one before")


def test_faults_that_begin_with_the_windows_do_too() -> None:
    assert summary([_faulting(16, 60, 2), _faulting(100, 10, 9_734)])["step_ns"] == 16 * MS


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (_faulting(100, 10, 9_734), _faulting(80, 10, 9_700)),  # as many: the pace changed
        (_faulting(100, 10, 300), _faulting(80, 10, 0)),  # 0.15 ms of 100 ms explain nothing
        (_faulting(100, 10, 0), _faulting(80, 10, 9_734)),  # quicker with more of them
        (_faulting(100, 10, 40), _faulting(80, 10, 0)),  # forty faults do not take 20 ms
        (_timed(*[100] * 10), _timed(*[80] * 10)),  # not counted
    ],
)
def test_other_changes_count_both_halves(before: Timed, after: Timed) -> None:
    assert not faults_changed(before, after)
    assert summary([before, after])["step_ns"] == 90 * MS


def test_faults_that_the_kernel_took_long_for_count_by_its_time() -> None:
    """1,500 faults, 0.75 ms by their number, took 4 ms of 80: the first half counts."""
    before, after = _faulting(80, 20, 1_600), _faulting(70, 20, 100)
    assert not faults_changed(before, after)
    before = replace(before, faults=Faults(1_600 * 20, 6 * MS * 20))
    assert faults_changed(before, after)
    assert summary([before, after])["step_ns"] == 80 * MS


def test_steps_of_equal_time_count_whatever_their_faults() -> None:
    before, after = _faulting(100, 10, 9_734), _faulting(99, 10, 10)
    assert not faults_changed(before, after)


def test_faults_are_not_counted_where_several_threads_make_the_steps() -> None:
    timed = [_timed_by(threads=1), _timed_by(threads=2)]
    assert [half.faults is None for half in timed] == [sys.platform != "linux", True]


def _timed_by(threads: int) -> Timed:
    baseline = Baseline(device=False)
    baseline.start()
    baseline.next_step()
    if threads > 1:
        other = Thread(target=baseline.next_step)
        other.start()
        other.join()
    baseline.next_step()
    timed = baseline.stop()
    assert timed is not None
    return timed
