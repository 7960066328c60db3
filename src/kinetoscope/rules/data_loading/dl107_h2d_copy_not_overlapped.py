"""The device copies its input and computes one after the other, though it could do both at once.

## What it finds
Copies from pinned memory to the device that no kernel runs beside, for a sizeable part of the step.

## Why it matters
Copy engines and multiprocessors are different units. On one stream the batch is copied first and
used afterwards, so the step is the sum of the two; with the next batch copied on a stream of its
own while this one is being used, it is the longer of the two.

## How to fix it
Copy the next batch on a side stream while the model works on this one, and let the compute stream
wait for the copy's event. Call `record_stream` on the batch, so that its memory is not reused
too early.

## Limits
It needs memory for two batches. When the link is the bottleneck (the copies take longer than the
kernels) overlap helps only until the copies alone set the pace: send fewer bytes (uint8 in place
of float32). A single request has nothing to overlap with.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import clip, measure
from kinetoscope.metrics.transfers import Purpose, transfers
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.data_loading._copies import exposed_copies, exposed_share, from_pageable
from kinetoscope.rules.data_loading._input import in_window, pinned_speed
from kinetoscope.units import duration, percent, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_SNIPPET = """\
side = torch.cuda.Stream()
with torch.cuda.stream(side):            # while the model works on `batch`
    following = next(loader).to(device, non_blocking=True)
torch.cuda.current_stream().wait_stream(side)   # before `following` is used
following.record_stream(torch.cuda.current_stream())"""


class Thresholds(Options, frozen=True):
    """When copies beside nothing are worth a word."""

    min_share: float = 0.05
    """Exposed copies as a share of the step; the border of TraceLens."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Measure copies that nothing runs beside."""
    copies = analysis.get(transfers)
    speed, _ = pinned_speed(analysis, copies)
    mine = in_window(analysis, copies) & copies.of(Purpose.DATA) & ~from_pageable(copies, speed)
    if not mine.any():
        return
    exposed = exposed_copies(analysis, copies.row[mine])
    share = exposed_share(analysis, exposed)
    if share < options.min_share:
        return
    rows = copies.row[mine]
    per_step = measure(clip(exposed, *analysis.window)) // analysis.steps
    link = int(copies.ns[mine].sum()) // analysis.steps_on_host
    nbytes = int(copies.bytes[mine].sum()) // analysis.steps_on_host
    yield Hit(
        message=f"Copying {size(nbytes)} of input takes {duration(per_step)} of each step in which "
        f"the device computes nothing ({percent(share)} of the step).",
        evidence=(
            Evidence("exposed_copies", per_step, "ns"),
            Evidence("exposed_share", round(share, 4), "ratio", "derived"),
            Evidence("bytes_per_step", nbytes, "bytes"),
        ),
        locations=analysis.locations(rows, calls=("to", "cuda", "copy_")),
        fix=Fix(
            summary="Copy the next batch on a stream of its own while the model works on this one.",
            snippet=_SNIPPET,
            reference="https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-streams",
        ),
        gain=analysis.gain(
            Change(durations=(rows, copies.ns[mine] // 3), unblock=copies.calls(mine)),
            Change(
                durations=(rows, np.zeros_like(rows)),
                unblock=copies.calls(mine),
                step_floor_ns=link,
            ),
        ),
        confidence=0.7,
        claims=exposed,
    )


def _one_after_the_other(t: TraceBuilder) -> None:
    for step in range(4):
        host, device = step * 500, 1_000 + step * 10_000
        t.step(host, 500)
        t.copy("HtoD Pinned", 150_000_000, device, 3_000, launch_at=host + 10, op="aten::copy_")
        t.kernel("gemm", device + 3_001, 6_990, launch_at=host + 40)


def _beside(t: TraceBuilder) -> None:
    for step in range(4):
        host, device = step * 500, 1_000 + step * 10_000
        t.step(host, 500)
        t.kernel("gemm", device, 9_990, launch_at=host + 10)
        t.copy("HtoD Pinned", 150_000_000, device + 60, 3_000, launch_at=host + 40, stream=20)


RULE = Rule(
    code="DL107",
    name="h2d-copy-not-overlapped",
    class_="data_loading",
    summary="Input is copied to the device while the device computes nothing.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches"}),
    evidence="T",
    remedies=("pin-memory",),
    references=("https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-streams",),
    examples=(
        Example("3 of 10 ms spent on a copy", _one_after_the_other, fires=True),
        Example("the same copy on a side stream", _beside, fires=False),
    ),
)
