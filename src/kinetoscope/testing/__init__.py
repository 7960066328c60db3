"""Small traces written by hand: for the examples of rules, for tests, for plugins.

from kinetoscope.testing import TraceBuilder

trace = (
    TraceBuilder()
    .step(0, 1000)
    .op("aten::mm", 10, 50, dims=[[64, 64], [64, 64]])
    .kernel("sm90_gemm", 80, 500, launch_at=20)
    .read()
)
"""

from __future__ import annotations

from kinetoscope.testing.builder import TraceBuilder
from kinetoscope.testing.jobs import JobBuilder
from kinetoscope.testing.regression import assert_no_regression

__all__ = ["JobBuilder", "TraceBuilder", "assert_no_regression"]
