"""The ranks take turns in having most work.

## What it finds
With the recordings of several ranks: in the typical step the rank with most kernel time has over
10 % more than the mean, and it is another rank from step to step.

## Why it matters
Each step takes as long as its slowest rank. When samples differ in length, chance gives one rank
more tokens in each step, and the others wait.

## How to fix it
Give the ranks equal work rather than equal numbers of samples: batches by length (bucketing), by
tokens, or packed sequences; the same for experts and pipeline stages.

## Limits
One rank that is always slow is another matter (CM406). Steps are compared by their number in each
recording. Not yet proved by a recording, so off by default.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.analysis.job import trusted
from kinetoscope.result import Evidence, Fix, Gain
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """What is uneven."""

    min_ratio: float = 1.10
    """Most kernel time of a rank over the mean, in the typical step."""
    most_often: float = 0.6
    """A rank that is first in more of the steps is a straggler."""
    likely_part: float = 0.7
    """Part of the difference that even batches save."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Compare kernel time over ranks, step by step."""
    if not trusted(analysis):
        return
    each = [_kernel_time(a) for a in analysis.ranks]
    steps = min((e.size for e in each), default=0)
    if steps < 3:
        return
    time = np.stack([e[:steps] for e in each])
    first = np.bincount(time.argmax(axis=0), minlength=len(each)).max() / steps
    ratio = float(np.median(time.max(axis=0) / np.maximum(time.mean(axis=0), 1)))
    if ratio < options.min_ratio or first > options.most_often:
        return
    lost = int((time.max(axis=0) - time.mean(axis=0)).mean())
    rest = max(analysis.step_ns - lost, 1)
    likely = analysis.step_ns / max(analysis.step_ns - options.likely_part * lost, 1)
    yield Hit(
        message=(
            f"In each step one rank, each time another, has {percent(ratio - 1)} more kernel time "
            f"than the mean; the others wait, {duration(lost)} a step."
        ),
        evidence=(
            Evidence("largest_over_mean", round(ratio, 6), "ratio", "derived"),
            Evidence("waiting", lost, "ns", "derived"),
        ),
        fix=Fix(
            summary="Give the ranks equal tokens: bucket by length, or pack sequences.",
            snippet="sampler = DistributedLengthGroupedSampler(batch_size, dataset)",
            reference="https://docs.pytorch.org/docs/stable/data.html",
        ),
        gain=Gain(1.0, round(likely, 3), round(analysis.step_ns / rest, 3), basis="bound"),
        confidence=0.4,
    )


def _kernel_time(analysis: Analysis) -> IntArray:
    """Kernel time of each steady step, ns."""
    trace, times = analysis.trace, analysis.times
    rows, step = times.device_rows, times.device_step
    use = (trace.column("kind")[rows] == Kind.KERNEL) & np.isin(step, times.steady)
    if not use.any():
        return np.empty(0, dtype=np.int64)
    at = np.searchsorted(np.array(times.steady), step[use])
    return np.bincount(
        at, weights=trace.column("dur_ns")[rows[use]], minlength=len(times.steady)
    ).astype(np.int64)


def _rank(t: TraceBuilder, works: tuple[int, ...]) -> None:
    for i, work in enumerate(works):
        at = 10_000 * i
        t.step(at, 10_000)
        t.kernel("gemm", at + 100, work, launch_at=at + 50, op="aten::mm")
        t.all_reduce(
            at + 105 + work, 9_595 - work, launch_at=at + 70, elements=1000 + i, sequence=i
        )
        t.sync(at + 120, 9_600)


def _first(t: TraceBuilder) -> None:
    _rank(t, (9_000, 6_000, 9_000, 6_000, 9_000, 6_000))


def _second(t: TraceBuilder) -> None:
    _rank(t, (6_000, 9_000, 6_000, 9_000, 6_000, 9_000))


RULE = Rule(
    code="CM407",
    name="compute-imbalance-across-ranks",
    class_="communication",
    summary="The ranks take turns in having most work.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ranks", "device"}),
    evidence="L",
    references=("https://docs.pytorch.org/docs/stable/data.html",),
    examples=(
        Example("9 ms and 6 ms of kernels in turn", _first, True, peers=(_second,)),
        Example("both ranks long and short together", _first, False, peers=(_first,)),
    ),
    preview=True,
)
