"""Launching, and everything else that a launching thread does."""

from __future__ import annotations

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.overhead import overhead_model
from kinetoscope.testing import TraceBuilder


def _ends(intervals: tuple[np.ndarray, np.ndarray]) -> list[tuple[float, float]]:  # type: ignore[type-arg]
    return [(s / 1000, e / 1000) for s, e in zip(*intervals, strict=True)]


def test_a_long_stretch_of_python_is_no_launching() -> None:
    t = TraceBuilder().step(0, 1000)
    t.python("train.py(1): step", 0, 1000)
    t.op("aten::mm", 0, 100)
    t.kernel("gemm", 50, 20, launch_at=40)
    t.op("aten::mm", 600, 400)
    t.kernel("gemm", 700, 20, launch_at=650)
    time = Analysis(t.read()).host_time
    assert _ends(time.long) == [(100.0, 600.0)]
    # The second operator runs for more than 100 µs after its launch: work, not launching.
    assert _ends(time.launching) == [(0.0, 100.0), (600.0, 654.0)]


def test_short_python_between_operators_belongs_to_launching() -> None:
    t = TraceBuilder().step(0, 400)
    for at in (0, 100, 200, 300):
        t.op("aten::mm", at, 60)
        t.kernel("gemm", at + 30, 20, launch_at=at + 20)
    time = Analysis(t.read()).host_time
    assert _ends(time.long) == []
    assert _ends(time.launching) == [(0.0, 400.0)]


def test_waiting_for_the_device_is_no_launching() -> None:
    t = TraceBuilder().step(0, 400)
    t.op("aten::mm", 0, 60).kernel("gemm", 30, 200, launch_at=20)
    t.sync(80, 155)
    t.op("aten::mm", 240, 150).kernel("gemm", 300, 20, launch_at=290)
    time = Analysis(t.read()).host_time
    assert _ends(time.launching) == [(0.0, 80.0), (235.0, 400.0)]


def test_recorded_frames_shorten_a_stretch() -> None:
    """What a thousand frames cost to record is taken off."""
    t = TraceBuilder().step(0, 1200)
    t.op("aten::mm", 0, 50).kernel("gemm", 30, 20, launch_at=20)
    for i in range(1000):
        t.python("train.py(5): inner", 100 + i, 0.9)
    t.op("aten::mm", 1150, 50).kernel("gemm", 1180, 20, launch_at=1170)
    trace = t.read()
    time = Analysis(trace).host_time
    assert _ends(time.long) == [(50.0, 1150.0)]
    assert time.long_net[0] == 1_100_000 - 1000 * overhead_model(trace).python_ns
