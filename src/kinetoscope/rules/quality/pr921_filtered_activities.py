"""The calls that launch kernels were not recorded.

## What it finds
Kernels and operators, but no runtime call that joins them.

## Why it matters
Without launches it is unknown which operator made a kernel, when it was issued, and why the device
waited.

## How to fix it
Do not filter activities (`custom_profiler_config`, `trace_only`); record the runtime as well.

## Limits
Some vendors' tools never record launches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.quality._examples import healthy
from kinetoscope.rules.quality._notice import notice

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

REFERENCE = "https://docs.pytorch.org/docs/stable/profiler.html"


class Thresholds(Options, frozen=True):
    """When to speak."""

    min_events: int = 10
    """Device events that must lack a launch."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """The calls that launch kernels were not recorded."""
    coverage = analysis.coverage
    if coverage.events < options.min_events or coverage.events_linked:
        return
    yield notice(
        "No kernel has a launch record: operators, launch delays and causes of idle time are "
        "unknown.",
        fix="Record the runtime's activities as well; do not filter them.",
        snippet="activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
        reference=REFERENCE,
        at_least="medium",
    )


def _bad(t: TraceBuilder) -> None:
    for step in range(4):
        t.step(step * 1_000, 1_000)
        t.op("aten::mm", step * 1_000 + 10, 100, dims=[[64, 64], [64, 64]])
        for i in range(5):
            t.kernel("gemm", step * 1_000 + 50 + 110 * i, 100)


def _good(t: TraceBuilder) -> None:
    healthy(t, steps=4)


RULE = Rule(
    code="PR921",
    name="filtered-activities",
    class_="quality",
    summary="Kernels were recorded without the calls that launched them.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "ops"}),
    evidence="S",
    references=(REFERENCE,),
    examples=(
        Example("twenty kernels without launches", _bad, fires=True),
        Example("a healthy recording", _good, fires=False),
    ),
)
