"""Several scalars are reduced one by one in each step.

## What it finds
More than five collectives of at most eight elements in each step, called by the user's own code.

## Why it matters
A collective of one number costs as much as one of ten thousand: its latency and its call. Metrics
reduced one by one pay it for each.

## How to fix it
Stack the numbers into one tensor and reduce that, every few steps.

## Limits
Small control messages of a library are left alone. Not yet proved by a recording, so off by
default.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.comm import OWNER_USER
from kinetoscope.metrics.intervals import merge
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.communication._calls import (
    calls_extent,
    in_steady_steps,
    intrinsic_ns,
    merged,
    per_step,
)
from kinetoscope.units import duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """What counts as scalars one by one."""

    max_elements: int = 8
    """A few numbers."""
    min_per_step: int = 6
    """More than five of them."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Count small reductions of the user's code, and replay with one."""
    comm = analysis.comm
    elements = np.array([max(m.in_nelems, m.out_nelems) for m in comm.messages], dtype=np.int64)
    positions = in_steady_steps(analysis)
    if not positions.size:
        return
    size = elements[comm.message[positions]]
    small = (size > 0) & (size <= options.max_elements)
    positions = positions[small & (comm.owner[positions] == OWNER_USER)]
    positions = positions[~comm.is_a("barrier")[positions]]
    count = per_step(analysis, positions)
    if count < options.min_per_step:
        return
    cost = int(intrinsic_ns(analysis)[positions].sum()) // analysis.steps_on_host
    yield Hit(
        message=(
            f"{count} collectives of at most {options.max_elements} numbers in each step, "
            f"{duration(cost)} on the device; one would do."
        ),
        evidence=(
            Evidence("collectives", count, "count"),
            Evidence("device_time", cost, "ns", "derived"),
        ),
        locations=analysis.locations(comm.row[positions], calls=("all_reduce", "reduce")),
        fix=Fix(
            summary="Stack the numbers and reduce them once, every few steps.",
            snippet="metrics = torch.stack([loss, accuracy, norm])\ndist.all_reduce(metrics)",
            reference="https://docs.pytorch.org/docs/stable/distributed.html",
        ),
        gain=analysis.gain(merged(analysis, positions, 1, hidden=0.0)),
        confidence=0.4,
        at_most="medium",
        claims=merge(calls_extent(analysis, positions), analysis.extent(comm.row[positions])),
    )


def _steps(t: TraceBuilder, count: int) -> None:
    for i in range(4):
        at = 10_000 * i
        t.step(at, 10_000)
        t.python("train.py(10): log", at + 3_000, 6_900)
        t.kernel("gemm", at + 100, 2_900, launch_at=at + 50)
        for k in range(count):
            start = at + 3_100 + 150 * k
            t.python("torch/distributed/distributed_c10d.py(2978): all_reduce", start - 5, 145)
            t.all_reduce(start + 60, 20, elements=1, launch_at=start)


def _twenty(t: TraceBuilder) -> None:
    _steps(t, 20)


def _two(t: TraceBuilder) -> None:
    _steps(t, 2)


RULE = Rule(
    code="CM426",
    name="duplicate-collective",
    class_="communication",
    summary="Several scalars are reduced one by one in each step.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"stacks"}),
    evidence="L",
    references=("https://docs.pytorch.org/docs/stable/distributed.html",),
    examples=(
        Example("twenty scalars, one by one", _twenty, True),
        Example("two scalars", _two, False),
    ),
    preview=True,
)
