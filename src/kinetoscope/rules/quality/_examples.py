"""Recordings that several examples share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


def launch(t: TraceBuilder, at: float) -> None:
    """One kernel with its launch, within 350 µs."""
    t.kernel("gemm", at + 40, 300, launch_at=at + 20)


def healthy(t: TraceBuilder, *, steps: int = 4, start: float = 0) -> None:
    """Steps of 1 ms with an operator, a launch and a kernel each."""
    for step in range(steps):
        at = start + step * 1_000
        t.step(at, 1_000)
        t.op("aten::mm", at + 10, 80, dims=[[64, 64], [64, 64]])
        t.kernel("gemm", at + 60, 900, launch_at=at + 20)
