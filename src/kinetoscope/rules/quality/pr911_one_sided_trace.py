"""The recording has only its host half or only its device half.

## What it finds
Kernels without any operator, or launches without any kernel, or a machine with a device and no
trace of its use.

## Why it matters
Without the device half, idle time and kernels are unknown; without the host half, nobody knows why
the device waits.

## How to fix it
`activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]`. If kernels are still missing, another
profiler holds the device, or the user may not read its counters.

## Limits
A program that does not use the device is no error; the message then is a mere note.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.result import Severity
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.quality._examples import healthy
from kinetoscope.rules.quality._notice import notice

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

REFERENCE = "https://docs.pytorch.org/docs/stable/profiler.html"


class Thresholds(Options, frozen=True):
    """When to speak."""

    min_launches: int = 10
    """Launches without any device event that prove a missing half."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """The recording has only its host half or only its device half."""
    coverage = analysis.coverage
    if analysis.trace.cut_off and not coverage.events:
        return  # device events are written last, so their absence says nothing
    level: Severity
    both = "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
    if coverage.launches >= options.min_launches and coverage.events == 0:
        message, level = "The device was used, but none of its activity was recorded.", "high"
        fix = (
            "Record ProfilerActivity.CUDA; if you do, close other profilers and allow access to "
            "the device's counters (kinetoscope doctor)."
        )
    elif coverage.events and not analysis.trace.tree.rows.size:
        message, level = "Only the device was recorded: why it waits cannot be told.", "medium"
        fix = "Record ProfilerActivity.CPU as well."
    elif not coverage.events and not coverage.launches and analysis.trace.header.devices:
        message, level = "The machine has a device, but the recording shows no use of it.", "info"
        fix = "If the program should run there: move model and data, and record its activity."
    else:
        return
    yield notice(message, fix=fix, snippet=both, reference=REFERENCE, at_least=level)


def _bad(t: TraceBuilder) -> None:
    for step in range(4):
        t.step(step * 1_000, 1_000)
        for i in range(5):
            t.runtime("cudaLaunchKernel", step * 1_000 + 10 + 20 * i, 5)


def _good(t: TraceBuilder) -> None:
    healthy(t, steps=4)


RULE = Rule(
    code="PR911",
    name="one-sided-trace",
    class_="quality",
    summary="Host operators or device activity were not recorded.",
    check=check,
    options=Thresholds(),
    evidence="T",
    references=(REFERENCE,),
    examples=(
        Example("twenty launches, no kernel", _bad, fires=True),
        Example("a healthy recording", _good, fires=False),
    ),
)
