"""Idle gaps and their causes, with times computed by hand."""

from __future__ import annotations

from kinetoscope.analysis import Analysis
from kinetoscope.analysis.budgeting import budget
from kinetoscope.metrics.activity import Cause
from kinetoscope.testing import TraceBuilder


def _by_cause(analysis: Analysis) -> dict[Cause, int]:
    pieces = analysis.pieces
    return {
        Cause(c): int(pieces.ns[pieces.cause == c].sum())
        for c in sorted(set(pieces.cause.tolist()))
    }


def test_loader_op_launch_and_latency() -> None:
    t = TraceBuilder()
    for step in (0, 1000, 2000):
        t.step(step, 1000)
        t.loader(step, 600, workers=0)
        t.op("aten::mm", step + 610, 40)
        t.kernel("gemm", step + 660, 300, launch_at=step + 640)
    analysis = Analysis(t.read())
    assert analysis.times.window == (960_000, 2_960_000)
    gaps = analysis.gaps
    assert (gaps.end - gaps.start).tolist() == [700_000, 700_000]
    causes = _by_cause(analysis)
    # 40 us after the kernel and 10 us before the op show no event at all.
    assert causes[Cause.LOADER] == 1_200_000
    assert causes[Cause.NOTHING] == 2 * 50_000
    assert causes[Cause.OP] + causes[Cause.LAUNCH] == int(
        (gaps.host_end - gaps.start).sum() - 1_300_000
    )
    lines = {(b.class_, b.label): b.ns for b in budget(analysis)}
    assert sum(lines.values()) == analysis.step_time.mid
    assert lines["data_loading", "waiting for the DataLoader"] > 0.55 * analysis.step_time.mid


def test_work_launched_in_time_is_not_the_hosts_fault() -> None:
    t = TraceBuilder()
    t.step(0, 1000).step(1000, 1000)
    t.kernel("a", 100, 100, launch_at=10)
    t.kernel("b", 900, 100, launch_at=20)
    t.kernel("a", 1100, 100, launch_at=1010)
    t.kernel("b", 1900, 100, launch_at=1020)
    analysis = Analysis(t.read())
    # Between the steps the launch of `a` came 10 us late and took 4 us; `b` was launched in time.
    assert _by_cause(analysis) == {Cause.NOTHING: 10_000, Cause.LAUNCH: 4_000}
    classes = {b.class_ for b in budget(analysis) if b.share > 0.5}
    assert classes == {"unattributed"}


def test_the_main_thread_explains_what_the_autograd_thread_waited_for() -> None:
    t = TraceBuilder()
    for step in (0, 1000, 2000):
        t.step(step, 1000)
        t.kernel("fwd", step + 20, 50, launch_at=step + 5)
        t.python("train.py(1): slow", step + 80, 500)
        t.backward("MmBackward0", step + 590, 100, seq=1)
        t.runtime("cudaLaunchKernel", step + 600, 5, corr=9000 + step, tid=1001)
        t.kernel("bwd", step + 610, 300, corr=9000 + step)
    causes = _by_cause(Analysis(t.read()))
    assert causes[Cause.PYTHON] == 2 * 500_000
