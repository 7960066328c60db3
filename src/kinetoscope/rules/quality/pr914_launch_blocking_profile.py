"""The recording was made with launches that wait for their kernels.

## What it finds
At least 95 % of the launches of kernels over 20 µs return only after the kernel has ended.

## Why it matters
With `CUDA_LAUNCH_BLOCKING=1` (or `AMD_SERIALIZE_KERNEL`, or under compute-sanitizer) host and
device never work at the same time. Launch times, queueing, idle time and host limits of such a
recording say nothing about the program as it normally runs.

## How to fix it
Unset the variable and record again.

## Limits
A program whose every kernel is followed by a wait inside the launch call itself does not exist
otherwise; debuggers have the same effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.blocking import launch_blocking
from kinetoscope.result import Evidence
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.quality._examples import healthy
from kinetoscope.rules.quality._notice import notice
from kinetoscope.units import percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

REFERENCE = "https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution"


class Thresholds(Options, frozen=True):
    """When launches count as blocking."""

    min_share: float = 0.95
    """Part of the launches of long kernels that must wait."""
    min_launches: int = 10
    """Fewer long kernels prove nothing."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Do launches return only when their kernels have ended?"""
    found = analysis.get(launch_blocking)
    if found.launches.size < options.min_launches or found.share < options.min_share:
        return
    yield notice(
        f"{percent(found.share)} of the launches wait for their kernel: the recording was made "
        "with blocking launches, and its host times mean nothing.",
        fix="Unset CUDA_LAUNCH_BLOCKING (AMD_SERIALIZE_KERNEL) and record again.",
        snippet="unset CUDA_LAUNCH_BLOCKING",
        reference=REFERENCE,
        evidence=(Evidence("blocking_launches", round(found.share, 4), "ratio"),),
        at_least="high",
    )


def _bad(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 1_000
        t.step(at, 1_000)
        for i in range(4):
            start = at + 20 + 200 * i
            t.kernel("gemm", start + 10, 100, launch_at=start, launch_dur=120)


def _good(t: TraceBuilder) -> None:
    healthy(t, steps=12)


RULE = Rule(
    code="PR914",
    name="launch-blocking-profile",
    class_="quality",
    summary="Launches wait for their kernels: host times of this recording mean nothing.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"launches"}),
    evidence="S",
    references=(REFERENCE,),
    examples=(
        Example("launches of 120 µs around kernels of 100 µs", _bad, fires=True),
        Example("launches that return at once", _good, fires=False),
    ),
)
