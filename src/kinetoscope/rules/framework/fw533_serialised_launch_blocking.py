"""Every launch waits for its kernel: host and device take turns.

## What it finds
At least 95 % of the launches of kernels over 20 µs return only after the kernel has ended.

## Why it matters
Normally the host runs ahead and the device always has work in its queue. With
`CUDA_LAUNCH_BLOCKING=1`, a debugging aid, each kernel is issued, awaited, and only then comes the
next operator.

## How to fix it
Unset `CUDA_LAUNCH_BLOCKING` (AMD: `AMD_SERIALIZE_KERNEL`, `HIP_LAUNCH_BLOCKING`); run
compute-sanitizer only to look for errors.

## Limits
How long the host takes without the waits is known only as far as its own work was recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.blocking import launch_blocking
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.units import duration, percent

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
    """Replay the step with launches that return at once."""
    found = analysis.get(launch_blocking)
    if found.launches.size < options.min_launches or found.share < options.min_share:
        return
    mine = analysis.in_steps(found.blocking)
    waited = int(analysis.trace.column("dur_ns")[mine].sum()) // analysis.steps_on_host
    yield Hit(
        message=(
            f"{percent(found.share)} of the launches wait for their kernel, "
            f"{duration(waited)} in each step: blocking launches are switched on."
        ),
        evidence=(
            Evidence("blocking_launches", round(found.share, 4), "ratio"),
            Evidence("waited", waited, "ns"),
        ),
        fix=Fix(
            summary="Unset CUDA_LAUNCH_BLOCKING (AMD_SERIALIZE_KERNEL); it is a debugging aid.",
            snippet="unset CUDA_LAUNCH_BLOCKING",
            reference=REFERENCE,
        ),
        gain=analysis.gain(Change(unblock=mine)),
        confidence=0.9,
        claims=analysis.extent(mine),
        at_least="medium",
    )


def _bad(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 1_000
        t.step(at, 1_000)
        for i in range(4):
            start = at + 20 + 240 * i
            t.kernel("gemm", start + 10, 100, launch_at=start, launch_dur=115)


def _good(t: TraceBuilder) -> None:
    for step in range(12):
        at = step * 1_000
        t.step(at, 1_000)
        t.kernel("gemm", at + 30, 900, launch_at=at + 20)


RULE = Rule(
    code="FW533",
    name="serialised-launch-blocking",
    class_="framework",
    summary="Every launch waits for its kernel, so host and device take turns.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"launches"}),
    evidence="S",
    references=(REFERENCE,),
    examples=(
        Example("launches of 115 µs around kernels of 100 µs", _bad, fires=True),
        Example("launches that return at once", _good, fires=False),
    ),
)
