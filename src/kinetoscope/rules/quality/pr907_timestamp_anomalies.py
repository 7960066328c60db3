"""Device events begin before they were launched.

## What it finds
More than 1 % of the kernels and copies start over 1 µs before the call that launched them.

## Why it matters
Host and device clocks were not aligned well. Launch delays and short gaps then mean nothing.

## How to fix it
Upgrade torch and the driver; record again after a warm-up. Times on one side of the recording
remain comparable.

## Limits
Rounding to microseconds in old recordings gives differences of up to 1 µs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.result import Evidence
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.quality._examples import healthy
from kinetoscope.rules.quality._notice import notice
from kinetoscope.units import percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

REFERENCE = "https://github.com/pytorch/kineto"


class Thresholds(Options, frozen=True):
    """When to speak."""

    tolerance_ns: int = 1_000
    """Rounding of old recordings."""
    min_share: float = 0.01
    """Part of the linked device events."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Device events begin before they were launched."""
    rows = analysis.times.device_rows
    launch = analysis.trace.links.launch[rows]
    known = launch >= 0
    ts = analysis.trace.column("ts_ns")
    early = ts[rows[known]] < ts[launch[known]] - options.tolerance_ns
    share = float(early.mean()) if early.size else 0.0
    if share < options.min_share:
        return
    yield notice(
        f"{percent(share)} of the device events begin before their launch: the clocks of host and "
        "device are not aligned.",
        fix="Upgrade torch and the driver and record again; do not trust launch delays.",
        reference=REFERENCE,
        evidence=(Evidence("early_events", round(share, 4), "ratio"),),
        at_least="low",
    )


def _bad(t: TraceBuilder) -> None:
    for step in range(4):
        t.step(step * 1_000, 1_000)
        t.kernel("gemm", step * 1_000 + 50, 100, launch_at=step * 1_000 + 100)


def _good(t: TraceBuilder) -> None:
    healthy(t, steps=4)


RULE = Rule(
    code="PR907",
    name="timestamp-anomalies",
    class_="quality",
    summary="Device events begin before their launch: the clocks are not aligned.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"launches"}),
    evidence="ST",
    references=(REFERENCE,),
    examples=(
        Example("kernels 50 µs before their launches", _bad, fires=True),
        Example("a healthy recording", _good, fires=False),
    ),
)
