"""The DataLoader works in the main process, and the device waits for it.

## What it finds
`enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__` takes a sizeable part of the step,
and the device is idle for most of that time.

## Why it matters
With `num_workers=0` each batch is read, decoded and collated between two steps, by the thread
that also launches the kernels. Nothing overlaps: the step becomes loading time plus compute time.

## How to fix it
Give the loader worker processes: `DataLoader(..., num_workers=4, persistent_workers=True)`.
Start with as many workers as loading takes longer than the rest of the step, plus one, and no
more than the machine has cores for each rank.

## Limits
A data set that lies in memory and costs less than a millisecond a batch gains nothing from
workers: starting and feeding them costs more. The prediction assumes that workers scale until
the loading time divided by their number meets the rest of the step; storage may not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Coverage, Intervals, measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Location
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.data_loading._input import (
    exposed_ratio,
    loader_call,
    loader_rows,
    loader_work,
)
from kinetoscope.trace.frames import is_loader_in_process
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_CAUTIOUS = 0.75
"""The cautious estimate: part of the loading time that workers take off the main process. Fetching
their batches, and sharing the cores with them, costs the rest."""


_HANDOVER_NS = 200_000
"""What taking a batch from the workers costs the main process with `pin_memory=True`: 0.1 to
0.25 ms in a recording with four workers. Without it, 1 ms and more: the tensors are rebuilt
here."""


class Thresholds(Options, frozen=True):
    """When loading is worth a word."""

    min_share: float = 0.05
    """Loading time as a share of the step; TensorBoard's plugin used the same border."""
    min_exposed: float = 0.5
    """Part of the loading time in which the device is idle."""
    most_workers: int = 16
    """Most workers to propose; the number that hides loading behind the rest of the step is
    loading time / rest, rounded up, plus one."""
    many_samples: int = 200
    """Samples of a batch from which on reading them one by one is worth a word."""
    short_sample_ns: int = 200_000
    """A sample that takes longer, as recorded, is work and not a call."""
    mostly: float = 0.4
    """Part of the loading time that those calls take."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Compare the loader's annotations with the device's idle time."""
    rows = loader_rows(analysis, is_loader_in_process)
    if rows.size == 0:
        return
    loading = analysis.extent(rows)
    share = measure(loading) / (analysis.step_ns * analysis.steps_on_host)
    exposed = exposed_ratio(analysis, loading)
    if share < options.min_share or exposed < options.min_exposed:
        return
    per_step = measure(loading) // analysis.steps_on_host
    rest = max(analysis.step_ns - per_step, 1)
    workers = min(-(-per_step // rest) + 1, options.most_workers)
    yield Hit(
        message=_message(analysis, per_step, share * exposed),
        evidence=(
            Evidence("loader_time", per_step, "ns"),
            Evidence("loader_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("exposed_share", round(min(share * exposed, 1.0), 4), "ratio", "derived"),
            Evidence("rest_of_the_step", rest, "ns", "derived"),
        ),
        locations=_places(analysis, rows),
        fix=_fix(analysis, loading, workers, options),
        gain=analysis.gain(
            Change(host_cut=loading, host_cut_factor=_CAUTIOUS),
            Change(host_cut=loading, extra_host_ns=_HANDOVER_NS),
            Change(host_cut=loading),
        ),
        confidence=0.9,
        claims=loading,
    )


def _fix(analysis: Analysis, loading: Intervals, workers: int, options: Thresholds) -> Fix:
    summary = f"Load batches in {workers} worker processes and keep them alive between epochs."
    snippet = loader_call(analysis, "...", f"num_workers={workers}", "persistent_workers=True")
    if _row_by_row(analysis, loading, options):
        summary += " If the data lie in memory, read a batch by one index instead: each sample "
        summary += "is a short call of Python."
        snippet += "\n# or: DataLoader(..., collate_fn=lambda batch: batch) and, in the data set,\n"
        snippet += "def __getitems__(self, indices):\n    return self.x[indices], self.y[indices]"
    return Fix(
        summary=summary,
        snippet=snippet,
        reference="https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading",
    )


def _row_by_row(analysis: Analysis, loading: Intervals, options: Thresholds) -> bool:
    """Is the loading mostly many short calls of the data set's `__getitem__`?"""
    samples = analysis.in_steps(analysis.matching(lambda name: name.endswith(": __getitem__")))
    ts, dur = (analysis.trace.column(c)[samples] for c in ("ts_ns", "dur_ns"))
    inside = Coverage(loading).between(ts, ts + dur)
    inside = inside[inside > 0]
    return bool(
        inside.size >= options.many_samples * loading[0].size
        and np.median(inside) < options.short_sample_ns
        and inside.sum() >= options.mostly * measure(loading)
    )


def _message(analysis: Analysis, per_step: int, idle_share: float) -> str:
    text = f"The DataLoader takes {duration(per_step)} of each recorded step in the main process"
    if analysis.device is None:
        return text + "."
    return text + f"; the device is idle meanwhile, {percent(idle_share)} of the step."


def _places(analysis: Analysis, rows: IntArray) -> tuple[Location, ...]:
    work, start, end = loader_work(analysis, rows)
    return analysis.locations(work, end - start) or analysis.locations(rows)


def _slow(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.loader(at, 8_000)
        t.kernel("gemm", at + 8_100, 1_500, launch_at=at + 8_050)


def _quick(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.loader(at, 200)
        t.kernel("gemm", at + 300, 9_500, launch_at=at + 250)


RULE = Rule(
    code="DL101",
    name="sync-dataloader-in-main-process",
    class_="data_loading",
    summary="The DataLoader works in the main process while the device waits.",
    check=check,
    options=Thresholds(),
    evidence="ET",
    remedies=("dataloader-workers",),
    references=(
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
        "https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading",
    ),
    examples=(
        Example("a loader that takes 80 % of the step", _slow, fires=True),
        Example("a loader that takes 2 % of the step", _quick, fires=False),
    ),
)
