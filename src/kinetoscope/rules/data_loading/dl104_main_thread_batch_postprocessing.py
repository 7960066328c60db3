"""The main thread works on the batch between the loader and the copy to the device.

## What it finds
Before the copy of a batch, the thread that launches the kernels spends a sizeable part of the step
on the data itself: stacking, padding, normalising, converting, in NumPy, Python or CPU operators.
The device is idle meanwhile.

## Why it matters
That thread does nothing else in this time, and no worker process helps it: the step becomes
preparation time plus compute time.

## How to fix it
Do it where it overlaps: in `collate_fn` or `__getitem__`, which run in the loader's workers; or on
the device, after one copy of the raw data (`images.to(device).float().div_(255)`), which is the
faster way for arithmetic. Replace loops over samples by one operation on the whole batch.

## Limits
Without Python stacks the time before the copy is known but not what it was spent on. Work that
overlaps with kernels is not counted. An input below 64 KiB is followed only when more
than a millisecond of work went into it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import measure
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.data_loading._input import trains
from kinetoscope.rules.data_loading._preparation import (
    preparation,
    preparation_gain,
    preparation_places,
    share_of_step,
)
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When work on the batch is worth a word."""

    min_share: float = 0.05
    """Idle time during that work as a share of the step; the border of DL101."""
    min_ns: int = 300_000
    """Less of it in a step is the Python that every training loop has."""
    min_unseen_ns: int = 1_000_000
    """The same without Python stacks, where the profiler's own `step()` cannot be told from it."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Measure the work before the copies of data, and the idle time during it."""
    if not trains(analysis):
        return
    found = preparation(analysis)
    share = share_of_step(analysis, found.exposed)
    per_step = measure(found.exposed) // analysis.steps
    least = options.min_ns if analysis.has("stacks") else options.min_unseen_ns
    if share < options.min_share or per_step < least:
        return
    yield Hit(
        message=f"The main thread works {duration(per_step)} of each step on the batch before it "
        f"copies it to the device, which is idle meanwhile ({percent(share)} of the step).",
        evidence=(
            Evidence("idle_during_preparation", per_step, "ns"),
            Evidence("idle_share", round(share, 4), "ratio", "derived"),
            Evidence("work_per_step", measure(found.work) // analysis.steps_on_host, "ns"),
            Evidence("bytes_per_step", found.bytes // analysis.steps_on_host, "bytes"),
        ),
        locations=preparation_places(analysis, found),
        fix=Fix(
            summary="Prepare the batch in the loader's workers (collate_fn), or copy the raw "
            "batch first and do the arithmetic on the device.",
            snippet="DataLoader(..., num_workers=4, collate_fn=prepare)  # in workers\n"
            "x = raw.to(device, non_blocking=True).float().div_(255)   # or on the device",
            reference="https://docs.pytorch.org/docs/stable/data.html#working-with-collate-fn",
        ),
        gain=preparation_gain(analysis, found),
        confidence=0.7,
        claims=found.exposed,
    )


def _pads_in_the_loop(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.loader(at, 100, workers=True)
        t.python("train.py(10): pad", at + 200, 6_000)
        t.op("aten::to", at + 6_300, 40)
        t.copy("HtoD Pinned", 1 << 20, at + 6_330, 30, launch_at=at + 6_310)
        t.kernel("gemm", at + 6_400, 3_000, launch_at=at + 6_360)
        t.annotation("Optimizer.step#SGD.step", at + 9_450, 20)


def _hidden(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.loader(at, 100, workers=True)
        t.python("train.py(10): pad", at + 200, 6_000)
        t.op("aten::to", at + 6_300, 40)
        t.copy("HtoD Pinned", 1 << 20, at + 6_330, 30, launch_at=at + 6_310)
        t.kernel("gemm", at + 6_370, 9_960, launch_at=at + 6_360)


RULE = Rule(
    code="DL104",
    name="main-thread-batch-postprocessing",
    class_="data_loading",
    summary="The main thread works on the batch before the copy, and the device waits.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches"}),
    evidence="T",
    remedies=("dataloader-workers",),
    references=("https://docs.pytorch.org/docs/stable/data.html#working-with-collate-fn",),
    examples=(
        Example("6 of 10 ms spent on padding before the copy", _pads_in_the_loop, fires=True),
        Example("the same work while the device computes", _hidden, fires=False),
    ),
)
