"""An operator whose result has a data-dependent size makes the host wait.

## What it finds
`nonzero`, `x[mask]`, `masked_select`, `unique`, one-argument `where`, `bincount` or
`repeat_interleave` without `output_size`, on the device and inside the step: each one copies the
size of its result to the host and waits for it.

## Why it matters
The host must know the size before it can launch anything that uses the result, so it stops until
the device has caught up, and the device stands still until the next launch. The operator itself
is three to five small kernels.

## How to fix it
Keep the shapes fixed: `torch.where(mask, a, b)` or a product with the mask instead of `x[mask]`,
`topk` with a fixed k instead of `nonzero`, `repeat_interleave(..., output_size=n)`,
`torch.nonzero_static(x, size=n)`. Routing (mixture of experts) sorts once and works on slices of
fixed capacity.

## Limits
Where the device is busy all the time the wait costs nothing. How much a program with fixed
shapes computes in addition (padding) is not part of the prediction. The best case of a loop over
such operators (experts, buckets) is the loop as one batched computation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import empty, measure, merge
from kinetoscope.metrics.waits import Wait
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._waiting import (
    avoidable,
    blocked_per_step,
    calls_inside,
    loop_bodies,
    part_of,
)
from kinetoscope.trace.op_names import short_name
from kinetoscope.units import duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_CALLS = (
    "nonzero",
    "argwhere",
    "masked_select",
    "unique",
    "unique_consecutive",
    "where",
    "bincount",
    "repeat_interleave",
)


class Thresholds(Options, frozen=True):
    """When such operators are worth a word."""

    min_per_step: float = 0.5
    """Rarer ones belong to logging or evaluation."""
    many_per_step: float = 8.0
    """From so many a step on they are taken for a loop that tensors of fixed size can replace."""
    body: tuple[float, float, float] = (0.4, 0.85, 1.0)
    """Part of such a loop's other host time that goes away when its iterations become one
    computation on tensors of fixed size: at the cautious end, likely, at best."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Replay the steps without the operators of unknown size."""
    waits = avoidable(analysis, Wait.SHAPE)
    if waits.call.size == 0:
        return
    trace = analysis.trace
    ops = np.unique(waits.op)
    working = analysis.extent(ops)
    names, counts = np.unique(trace.column("name_id")[ops], return_counts=True)
    name = short_name(trace.names[names[counts.argmax()]])
    per_step = ops.size / analysis.steps_on_host
    if per_step < options.min_per_step:
        return
    blocked = blocked_per_step(analysis, waits)
    inside = calls_inside(analysis, ops)
    body = loop_bodies(analysis, ops) if per_step >= options.many_per_step else empty()
    low, partly, wholly = (
        Change(
            host_cut=merge(working, part_of(body, share)),
            unblock=waits.calls,
            drop_calls=inside,
        )
        for share in options.body
    )
    if not body[0].size:
        low = Change(unblock=waits.calls)
    yield Hit(
        message=(
            f"`{name}` makes a result of data-dependent size {max(round(per_step), 1)} times a "
            f"step; each time the host waits for the device, {duration(blocked)} a step in all."
        ),
        evidence=(
            Evidence("waits_per_step", round(per_step, 1), "count"),
            Evidence("blocked_time", blocked, "ns"),
            Evidence("operator_time", measure(working) // analysis.steps_on_host, "ns"),
        ),
        locations=analysis.locations(ops, calls=_CALLS),
        fix=Fix(
            summary=f"Use an operation whose result has a fixed size instead of `{name}`.",
            snippet="y = torch.where(mask, f(x), x)   # instead of x[mask] = f(x[mask])",
            reference="https://docs.pytorch.org/docs/stable/generated/torch.nonzero_static.html",
        ),
        gain=analysis.gain(low, partly, wholly),
        confidence=0.9,
        claims=working,
    )


def _masks(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 2_000.0
        t.step(at, 2_000)
        t.python("model.py(10): route", at + 5, 1_990)
        for i in range(16):
            begin = at + 10 + i * 120
            t.kernel("gemm", begin + 12, 40, launch_at=begin + 4, op="aten::mm")
            t.op("aten::nonzero", begin + 20, 70)
            t.copy("DtoH Pinned", 8, begin + 60, 2, launch_at=begin + 25, launch_dur=6)
            t.sync(begin + 33, 35)


def _behind_a_busy_device(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000.0
        t.step(at, 10_000)
        t.kernel("gemm", at + 30, 4_990, launch_at=at + 5, op="aten::mm")
        t.kernel("gemm", at + 5_022, 4_980, launch_at=at + 15, op="aten::mm")
        t.op("aten::nonzero", at + 40, 5_010)
        t.copy("DtoH Pinned", 8, at + 5_020, 2, launch_at=at + 45, launch_dur=6)
        t.sync(at + 53, 4_975)


RULE = Rule(
    code="FW504",
    name="data-dependent-shape-sync",
    class_="framework",
    summary="Operators whose result has a data-dependent size make the host wait.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches"}),
    evidence="TE",
    references=(
        "https://docs.pytorch.org/docs/stable/generated/torch.nonzero_static.html",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    ),
    examples=(
        Example("sixteen boolean masks a step", _masks, fires=True),
        Example("one mask behind a device that is always busy", _behind_a_busy_device, fires=False),
    ),
)
