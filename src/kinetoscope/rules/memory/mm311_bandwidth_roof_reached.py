"""Kernels run at the bandwidth of the device's memory: they cannot be tuned further.

## What it finds
Kernels that are bound by memory and reach three quarters of its bandwidth or more, for a sizeable
part of the busy time.

## Why it matters
It explains why the device is busy although it computes little, and what does not help: a larger
batch, another launch configuration, a faster device with the same memory.

## How to fix it
Only moving fewer bytes helps: fused kernels (`torch.compile`), bfloat16 in place of float32,
in-place operators, recomputing in place of storing.

## Limits
Information, not a fault. The traffic is the least that the operator must move; data that caches
serve reads as more than the memory can deliver and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.roofline import Bound
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import (
    alone,
    busy_share,
    device_work,
    extent_of,
    heaviest_op,
    per_step_ns,
    places,
    positions,
)
from kinetoscope.units import duration, percent, rate

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When the memory's limit is worth a word."""

    reached: float = 0.75
    """Share of the data sheet's bandwidth; good kernels reach 0.85 to 0.9 (RULES, MM311)."""
    min_share: float = 0.3
    """Share of the busy time in such kernels; every program has some."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Sum the kernels at the roof; there is nothing to gain from them."""
    roof = analysis.roof
    at_roof = (roof.bound == Bound.MEMORY) & (roof.efficiency >= options.reached)
    at_roof &= ~roof.over_roof
    at_roof[at_roof] = alone(analysis, roof.costs.rows[at_roof])
    rows = roof.costs.rows[at_roof]
    if rows.size == 0 or busy_share(analysis, rows) < options.min_share:
        return
    ns = analysis.trace.column("dur_ns")[rows]
    achieved = float(roof.costs.bytes[at_roof].sum() / max(int(ns.sum()), 1)) * 1e9
    share, spent = busy_share(analysis, rows), per_step_ns(analysis, rows)
    work = device_work(analysis)
    name = heaviest_op(analysis, work, np.unique(positions(work, rows)))
    yield Hit(
        message=(
            f"Kernels at the limit of the memory's bandwidth ({rate(achieved, 'B')}) take "
            f"{duration(spent)} a step, {percent(min(share, 1.0))} of the busy time; most of it is "
            f"`{name}`. Only moving fewer bytes helps."
        ),
        evidence=(
            Evidence("time_at_the_roof", spent, "ns"),
            Evidence("busy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("achieved", round(achieved), "bytes_per_s", "derived"),
        ),
        locations=places(analysis, rows),
        fix=Fix(
            summary="Move fewer bytes: fuse operators, use bfloat16, work in place.",
            snippet="module = torch.compile(module)",
            reference="https://docs.nvidia.com/deeplearning/performance/"
            "dl-performance-memory-limited/index.html",
        ),
        confidence=0.7,
        claims=extent_of(analysis, rows),
        at_most="info",
        keep=True,
    )


def _adding(t: TraceBuilder, dur: float) -> None:
    shape = [8_192, 8_192]
    for step in range(4):
        at = step * 1_000
        t.step(at, 990)
        t.op("aten::add", at + 10, 12, dims=[shape, shape, []])
        t.kernel("vectorized_elementwise_kernel", at + 30, dur, launch_at=at + 14)
        t.sync(at + 40, dur)


def _fast(t: TraceBuilder) -> None:
    _adding(t, 200)  # 805 MB: 4.0 of 4.8 TB/s


def _slow(t: TraceBuilder) -> None:
    _adding(t, 600)


RULE = Rule(
    code="MM311",
    name="bandwidth-roof-reached",
    class_="memory",
    summary="Kernels run at the bandwidth of the device's memory; only fewer bytes help.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "shapes"}),
    evidence="T",
    references=(
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-memory-limited/index.html",
    ),
    examples=(
        Example("an addition at 84 % of the bandwidth", _fast, fires=True),
        Example("an addition at 28 % of the bandwidth", _slow, fires=False),
    ),
)
