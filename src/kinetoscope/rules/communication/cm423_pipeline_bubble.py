"""A pipeline stage waits for its neighbours for a good part of the step.

## What it finds
Ranges of torch's pipeline schedules (`Forward 3`, `PP:0F3`) with sends and receives, on a device
that computes for less than 85 % of the step, and less than the schedule allows.

## Why it matters
While a pipeline of p stages fills and drains, each stage idles: (p - 1) / (m + p - 1) of the step
with m micro-batches. Idle time beyond that comes from uneven stages or slow transfers.

## How to fix it
More micro-batches, a schedule that interleaves several stages on each rank
(`ScheduleInterleaved1F1B`) or splits the backward pass (`ScheduleZBVZeroBubble`); and stages of
equal time.

## Limits
Twice as many micro-batches are assumed, of half the size, without loss of efficiency in the
kernels. The number of stages is taken from the process group of the sends; without it from the
number of ranks. Which stage is slow only the recordings of all ranks show.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import clip, measure, subtract
from kinetoscope.result import Evidence, Fix, Gain
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.trace.distributed_frames import pipeline_microbatch
from kinetoscope.units import percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When a bubble is too large."""

    min_share: float = 0.15
    """Idle part of the step from which on it is worth a word."""
    over_theory: float = 0.8
    """Part of the schedule's own bubble that the measured one must reach; less is hidden well."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Compare the idle part of the stage with what the schedule implies."""
    device, comm = analysis.device, analysis.comm
    found = [pipeline_microbatch(name) for name in analysis.trace.names]
    batches = {each[1] for each in found if each is not None}
    moves = comm.is_a("send", "recv", "send_recv", "coalesced")
    if device is None or not batches or not moves.any():
        return
    stages, m = _stages(analysis, moves), len(batches)
    if stages < 2:
        return
    low, high = analysis.times.window
    inside = clip(device.compute, low, high)
    bubble = 1.0 - measure(inside) / max(high - low, 1)
    theory = (stages - 1) / (m + stages - 1)
    if bubble < options.min_share or bubble < options.over_theory * theory:
        return
    better = (stages - 1) / (2 * m + stages - 1)
    beyond = max(bubble - theory, 0.0)
    mid = (1.0 - min(bubble, better + beyond)) / max(1.0 - bubble, 0.01)
    high_gain = (1.0 - min(bubble, better)) / max(1.0 - bubble, 0.01)
    yield Hit(
        message=(
            f"This stage computes for {percent(1.0 - bubble)} of the step. Of the "
            f"{percent(bubble)} it waits, {percent(min(theory, bubble))} belong to a schedule of "
            f"{stages} stages and {m} micro-batches."
        ),
        evidence=(
            Evidence("waiting_share", round(bubble, 4), "ratio", "derived"),
            Evidence("share_of_schedule", round(theory, 4), "ratio", "derived"),
            Evidence("stages", stages, "count"),
            Evidence("micro_batches", m, "count"),
        ),
        locations=analysis.locations(comm.row[moves], calls=("step", "send", "recv")),
        fix=Fix(
            summary=(
                f"Use {2 * m} micro-batches, or an interleaved schedule; "
                "give the stages equal time."
            ),
            snippet=f"schedule = Schedule1F1B(stage, n_microbatches={2 * m}, loss_fn=loss_fn)",
            reference="https://docs.pytorch.org/docs/stable/distributed.pipelining.html",
        ),
        gain=Gain(1.0, round(max(mid, 1.0), 3), round(max(mid, high_gain, 1.0), 3), basis="bound"),
        confidence=0.7,
        at_most="high",
        claims=subtract((np.array([low]), np.array([high])), inside),
    )


def _stages(analysis: Analysis, moves: npt.NDArray[np.bool_]) -> int:
    comm = analysis.comm
    sizes = [comm.messages[i].group_size for i in np.unique(comm.message[moves]).tolist()]
    # Point-to-point calls often travel in a pair's own group.
    known = [size for size in sizes if size > 2]
    return max(known, default=0) or analysis.trace.header.world_size or len(analysis.ranks)


def _steps(t: TraceBuilder, *, batches: int, each: int) -> None:
    for i in range(4):
        at = 10_000 * i
        t.step(at, 10_000)
        apart = 9_600 // batches
        for k in range(batches):
            start = at + 100 + apart * k
            t.annotation(f"Forward {k}", start, 60)
            t.all_reduce(
                start + 40, apart - each - 60, launch_at=start + 5, group_size=4, name="recv"
            )
            t.kernel("gemm", start + apart - each, each, launch_at=start + 25)
        t.sync(at + 100 + apart * (batches - 1) + 70, apart)


def _bubble(t: TraceBuilder) -> None:
    _steps(t, batches=4, each=1_300)


def _full(t: TraceBuilder) -> None:
    _steps(t, batches=16, each=560)


RULE = Rule(
    code="CM423",
    name="pipeline-bubble",
    class_="communication",
    summary="A pipeline stage waits for its neighbours for a good part of the step.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device"}),
    evidence="S",
    references=("https://docs.pytorch.org/docs/stable/distributed.pipelining.html",),
    examples=(
        Example("4 stages, 4 micro-batches: half of the step is waiting", _bubble, True),
        Example("16 micro-batches, the stage computes 90 % of the step", _full, False),
    ),
)
