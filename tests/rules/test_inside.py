"""What host time goes with device events that are not launched any more."""

from __future__ import annotations

import numpy as np

from kinetoscope.metrics.device_ops import device_ops
from kinetoscope.rules._inside import host_with_callers
from kinetoscope.testing import TraceBuilder


def test_callers_go_with_their_last_launch() -> None:
    """A product in `linear` in a function of 100 us; a second one in a function with own work."""
    t = TraceBuilder()
    t.python("model.py(1): forward", 0, 1_000)
    t.python("model.py(5): project", 100, 100)
    t.op("aten::linear", 120, 70)
    t.op("aten::addmm", 130, 50)
    t.kernel("gemm", 300, 50, launch_at=140)
    t.python("model.py(9): prepare", 400, 300)
    t.op("aten::mul", 500, 40)
    t.kernel("mul", 600, 50, launch_at=510)
    t.op("aten::add", 800, 40)
    t.kernel("add", 900, 50, launch_at=810)
    work = device_ops(t.read())
    start, end = host_with_callers(work, np.array([0, 1]))
    # `project` launches nothing else and 70 of its 100 us are calls; 260 of `prepare`'s 300 us are
    # its own; `forward` also launches the addition.
    assert (start.tolist(), end.tolist()) == ([100_000, 500_000], [200_000, 540_000])
