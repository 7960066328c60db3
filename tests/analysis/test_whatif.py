"""Gains when the true step time is known."""

from __future__ import annotations

import pytest

from kinetoscope.analysis import Analysis, AnalysisOptions
from kinetoscope.metrics.intervals import union
from kinetoscope.replay import Change
from kinetoscope.testing import TraceBuilder

MS = 1_000_000


def _steps(real_ms: float | None) -> Analysis:
    """Four steps of 10 ms: 8 ms of one call, 2 ms of another, and no other event."""
    t = TraceBuilder(device=None)
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.op("aten::wait", at, 8_000)
        t.op("aten::mm", at + 8_000, 2_000)
    real = None if real_ms is None else round(real_ms * MS)
    return Analysis(t.read(), AnalysisOptions(real_step_ns=real))


@pytest.mark.parametrize(("real_ms", "high"), [(9.5, 9.5 / 1.5), (9.0, 9.0 / 1.2), (10.0, 5.0)])
def test_what_the_profiler_does_not_explain_may_be_in_what_stays(
    real_ms: float, high: float
) -> None:
    """10 ms were recorded; the call of 8 ms goes. 0.5 ms less may leave 2 - 0.5 ms.

    No less than 0.6 of the 2 ms is believed to stay.
    """
    analysis = _steps(real_ms)
    ts = analysis.trace.column("ts_ns")
    rows = analysis.trace.column("dur_ns") == 8 * MS
    cut = union(ts[rows], ts[rows] + 8 * MS)
    gain = analysis.gain(Change(host_cut=cut))
    assert gain.high == pytest.approx(high, rel=0.02)
    assert gain.mid == pytest.approx(5.0, rel=0.02)


def test_the_low_end_of_the_step_follows_the_fastest_steps() -> None:
    """Of four steps two take twice as long, in operators whose recording costs nothing to speak of.

    The device works 2 ms of each, and no step can be shorter.
    """

    def low(lengths: tuple[int, ...], work: int) -> int:
        t, at = TraceBuilder(), 0
        for length in lengths:
            t.step(at, length)
            t.op("aten::fft_rfft", at + 10, length - work - 100)
            t.kernel("gemm", at + length - work - 40, work, launch_at=at + length - work - 60)
            t.sync(at + length - work - 40, work + 20)
            at += length
        return Analysis(t.read()).step_time.low

    even = low((30_000,) * 4, 2_000)
    assert low((20_000, 40_000, 20_000, 40_000), 2_000) == pytest.approx(even * 20 / 30, rel=0.1)
    assert low((4_000, 8_000, 4_000, 8_000), 3_900) >= 3_900_000


def test_a_small_fix_gains_no_more_than_what_it_removes() -> None:
    """30 us of a host-bound step go. Whatever the profiler cost the rest: no more than 30 us."""
    t = TraceBuilder()
    for step in range(4):
        at = step * 1_000
        t.step(at, 1_000)
        for i in range(90):
            t.kernel("add", at + i * 10 + 6, 1, launch_at=at + i * 10 + 2, op="aten::add")
        t.python("train.py(3): log", at + 950, 30)
    analysis = Analysis(t.read())
    log = analysis.extent(analysis.matching(lambda name: "log" in name))
    gain = analysis.gain(Change(host_cut=log))
    fastest = analysis.step_time.low
    assert fastest < 700_000  # the bracket is wide
    assert gain.high <= 1.02 * fastest / (fastest - 30_000)


def test_no_gain_is_predicted_without_the_device_timeline() -> None:
    """Twenty launches, and not one kernel: a host that works all the time may hide behind them."""
    t = TraceBuilder()
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.op("aten::wait", at, 8_000)
        for launch in range(5):
            corr = 100 + 5 * step + launch
            t.runtime("cudaLaunchKernel", at + 8_100 + launch * 100, 10, corr=corr)
    analysis = Analysis(t.read())
    ts = analysis.trace.column("ts_ns")
    rows = analysis.trace.column("dur_ns") == 8 * MS
    gain = analysis.gain(Change(host_cut=union(ts[rows], ts[rows] + 8 * MS)))
    assert (gain.low, gain.mid, gain.high, gain.basis) == (1.0, 1.0, 1.0, "none")
