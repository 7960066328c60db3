"""The replay on drawn timelines: it reproduces them, and changes do what arithmetic says."""

from __future__ import annotations

import numpy as np
import pytest

from kinetoscope.analysis import Analysis
from kinetoscope.replay import Change, simulate
from kinetoscope.testing import TraceBuilder
from kinetoscope.trace.kinds import Kind

_STEP = 1000.0


def _host_bound() -> Analysis:
    """Each step: 600 us of Python, then a launch whose kernel takes 100 us."""
    t = TraceBuilder()
    for i in range(5):
        at = i * _STEP
        t.step(at, _STEP)
        t.python("train.py(1): think", at + 10, 600)
        t.kernel("gemm", at + 710, 100, launch_at=at + 700, launch_dur=5)
    return Analysis(t.read())


def _device_bound() -> Analysis:
    """Launches 100 us apart, kernels of 1000 us: the device falls behind."""
    t = TraceBuilder()
    for i in range(5):
        t.step(i * 100, 100)
        t.kernel("gemm", 20 + i * 1000, 1000, launch_at=10 + i * 100, launch_dur=5)
    return Analysis(t.read())


def _synchronised() -> Analysis:
    """A kernel of 400 us, a wait for it, 100 us of Python: nothing overlaps."""
    t = TraceBuilder()
    for i in range(5):
        at = i * 510
        t.step(at, 510)
        t.kernel("gemm", at + 10, 390, launch_at=at, launch_dur=5)
        t.sync(at + 6, 400)
        t.python("train.py(1): log", at + 408, 100)
    return Analysis(t.read())


@pytest.mark.parametrize("make", [_host_bound, _device_bound, _synchronised])
def test_replay_without_a_change_reproduces_the_step(make: object) -> None:
    analysis = make()  # type: ignore[operator]
    assert simulate(analysis.model).step_ns == pytest.approx(analysis.step_ns, rel=0.01)


def test_removing_host_time_shortens_a_host_bound_step() -> None:
    analysis = _host_bound()
    cut = analysis.extent(analysis.rows(Kind.PYTHON))
    after = simulate(analysis.model, Change(host_cut=cut))
    assert after.step_ns == pytest.approx(400_000, rel=0.01)
    half = simulate(analysis.model, Change(host_cut=cut, host_cut_factor=0.5))
    assert half.step_ns == pytest.approx(700_000, rel=0.01)


def test_a_copy_that_seems_to_end_after_its_call_was_waited_for() -> None:
    """A pageable copy of 390 us inside a call of 400 us; the device's clock is 5 us ahead.

    Without the copy a step is 100 us of Python, the rest of the call and 1.5 us for a call.
    """
    t = TraceBuilder()
    for i in range(5):
        at = i * 510
        t.step(at, 510)
        t.copy("HtoD Pageable", 4 << 20, at + 20, 390, launch_at=at + 5, launch_dur=400)
        t.python("train.py(1): log", at + 406, 100)
    analysis = Analysis(t.read())
    assert simulate(analysis.model).step_ns == pytest.approx(510_000, rel=0.01)
    copies = analysis.rows(Kind.COPY)
    shorter = (copies, np.full(copies.size, 39_000, dtype=np.int64))
    after = simulate(analysis.model, Change(durations=shorter))
    assert after.step_ns == pytest.approx(510_000 - 351_000, rel=0.01)


def test_removing_host_time_gains_nothing_when_the_device_sets_the_pace() -> None:
    analysis = _device_bound()
    launches = analysis.extent(analysis.rows(Kind.LAUNCH))
    assert analysis.gain(Change(host_cut=launches)).mid == 1.0


def test_shorter_kernels_help_until_the_host_is_the_bottleneck() -> None:
    analysis = _device_bound()
    kernels = analysis.rows(Kind.KERNEL)

    def step(ns: int) -> float:
        new = np.full(kernels.size, ns, dtype=np.int64)
        return simulate(analysis.model, Change(durations=(kernels, new))).step_ns

    assert step(500_000) == pytest.approx(500_000, rel=0.01)
    assert step(10_000) == pytest.approx(100_000, rel=0.01)


def test_removing_a_wait_lets_the_host_run_ahead() -> None:
    """Without the wait the device sets the pace: 390 us of kernel a step instead of 510."""
    analysis = _synchronised()
    syncs = analysis.rows(Kind.SYNC_CALL)
    after = simulate(analysis.model, Change(unblock=syncs)).step_ns
    assert 390_000 <= after <= 410_000


def test_dropping_calls_drops_their_kernels() -> None:
    analysis = _device_bound()
    launches = analysis.rows(Kind.LAUNCH)
    after = simulate(analysis.model, Change(drop_calls=launches))
    assert after.step_ns == pytest.approx(100_000, rel=0.06)


def test_the_floor_of_a_change_holds() -> None:
    analysis = _host_bound()
    cut = analysis.extent(analysis.rows(Kind.PYTHON))
    floored = simulate(analysis.model, Change(host_cut=cut, step_floor_ns=800_000))
    assert floored.step_ns == 800_000


def test_a_known_step_time_pins_the_bracket() -> None:
    from kinetoscope.analysis import AnalysisOptions

    trace = _host_bound().trace
    pinned = Analysis(trace, AnalysisOptions(real_step_ns=900_000)).step_time
    assert (pinned.low, pinned.mid, pinned.high) == (900_000, 900_000, 900_000)


def test_the_bracket_is_ordered_and_never_below_the_devices_work() -> None:
    for make in (_host_bound, _device_bound, _synchronised):
        analysis = make()
        step = analysis.step_time
        assert analysis.busy_per_step_ns <= step.low <= step.mid <= step.high == analysis.step_ns


def test_a_replay_that_is_off_widens_every_range_and_is_told() -> None:
    from kinetoscope.notes import notes_for
    from kinetoscope.trace.job import Job

    analysis = _host_bound()
    cut = Change(host_cut=analysis.extent(analysis.rows(Kind.PYTHON)))
    exact = analysis.gain(cut)
    assert not any("off by" in note for note in notes_for(analysis, Job((analysis.trace,))))
    # As if the steps had really taken 0.8 ms, which the model cannot explain.
    object.__setattr__(analysis.times, "recorded_ns", 800_000)
    fresh = Analysis(analysis.trace)
    fresh.__dict__["times"] = analysis.times
    wide = fresh.gain(cut)
    assert fresh.replay_error == pytest.approx(0.25, abs=0.01)
    assert wide.mid == exact.mid
    assert wide.high == pytest.approx(exact.high * 1.2, rel=0.01)
    assert wide.low == pytest.approx(max(exact.low / 1.2, 1.0), rel=0.01)
    (note,) = [n for n in notes_for(fresh, Job((fresh.trace,))) if "off by" in n]
    assert "25 %" in note
