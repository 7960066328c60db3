"""DDP copies every gradient into a bucket and back.

## What it finds
The reducer's `copy_bucket_to_grad` in at least half of the steps, where these copies take at least
1 % of the step.

## Why it matters
Without `gradient_as_bucket_view` each gradient exists twice: DDP copies it into its bucket, sends
the bucket, and copies the averaged values back. That costs launches, bandwidth and one more copy
of all gradients in memory.

## How to fix it
`DistributedDataParallel(..., gradient_as_bucket_view=True)`: the gradients are views into the
buckets.

## Limits
The scaled copy into the bucket stays when gradients are set to None between steps; only the copy
back goes. The setting creates no overlap.
Code that replaces `param.grad` with a tensor of its own cannot use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.communication._ranges import host_time, launched_inside, ranges, steps_with
from kinetoscope.trace.distributed_frames import is_bucket_copy
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When the copies matter."""

    min_steps: float = 0.5
    """Part of the steps with copies."""
    min_share: float = 0.01
    """Copies, on host or device, as a share of the step."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Replay the step without the copies back."""
    back = ranges(analysis, is_bucket_copy)
    steps = analysis.steps_on_host
    if not back.size or steps_with(analysis, back) < options.min_steps * steps:
        return
    host_back = host_time(analysis, back)
    calls = launched_inside(analysis, host_back)
    copied = _events(analysis, calls)
    dur = analysis.trace.column("dur_ns")
    device = int(dur[copied].sum()) // steps
    host = measure(host_back) // steps
    if max(device, host) < options.min_share * analysis.step_ns:
        return
    without = Change(host_cut=host_back, drop_calls=calls)
    shorter = (0.3 * dur[copied]).astype(np.int64)
    cautious = Change(host_cut=host_back, host_cut_factor=0.5, durations=(copied, shorter))
    yield Hit(
        message=(
            f"DDP copies {round(back.size / steps):,} gradients out of its buckets in every step: "
            f"{duration(host)} on the host, {duration(device)} on the device."
        ),
        evidence=(
            Evidence("copies", round(back.size / steps), "count"),
            Evidence("host_time", host, "ns"),
            Evidence("device_time", device, "ns"),
        ),
        locations=analysis.locations(analysis.trace.tree.rows[back], calls=("backward",)),
        fix=Fix(
            summary="Let the gradients be views into the buckets; that also saves their memory.",
            snippet="DistributedDataParallel(model, gradient_as_bucket_view=True)",
            reference="https://docs.pytorch.org/docs/stable/generated/"
            "torch.nn.parallel.DistributedDataParallel.html",
        ),
        gain=analysis.gain(cautious, without),
        confidence=0.9,
        claims=host_back,
        at_most="medium",
    )


def _events(analysis: Analysis, launches: IntArray) -> IntArray:
    """Device events of these calls."""
    launch = analysis.trace.links.launch
    return np.flatnonzero(np.isin(launch, launches) & (launch >= 0))


def _steps(t: TraceBuilder, copies: int) -> None:
    for i in range(4):
        at = 10_000 * i
        t.step(at, 10_000)
        t.kernel("gemm", at + 100, 1_000, launch_at=at + 50)
        for k in range(copies):
            start = at + 1_200 + 50 * k
            t.op("torch.distributed.ddp.reducer::copy_bucket_to_grad", start, 40)
            t.kernel("elementwise_kernel_copy", start + 20, 10, launch_at=start + 10)
        t.kernel("gemm", at + 4_300, 4_000, launch_at=at + 4_200)
        t.sync(at + 4_250, 4_100)


def _many(t: TraceBuilder) -> None:
    _steps(t, 50)


def _few(t: TraceBuilder) -> None:
    _steps(t, 1)


RULE = Rule(
    code="CM411",
    name="ddp-bucket-copies",
    class_="communication",
    summary="DDP copies every gradient into a bucket and back.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops"}),
    evidence="E",
    remedies=("ddp-bucket-view",),
    references=("https://docs.pytorch.org/docs/stable/notes/ddp.html",),
    examples=(
        Example("50 copies back, one by one, while the device waits", _many, True),
        Example("a single gradient", _few, False),
    ),
)
