"""The data set works on the device, sample by sample.

## What it finds
Kernels and copies that are launched inside the DataLoader's fetch in the main process.

## Why it matters
Each sample pays for its own launches and copies, none of which is large enough for the device; and
a data set that uses the device cannot be moved into worker processes.

## How to fix it
Return CPU tensors from the data set, and do on the device what should be done there once for each
batch, after one copy.

## Limits
A preview. Loaders that are made for the device (DALI) do this on purpose and well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Coverage, measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.data_loading._input import loader_rows
from kinetoscope.rules.framework._surroundings import steady_extent
from kinetoscope.trace.frames import is_loader_in_process
from kinetoscope.trace.kinds import Kind
from kinetoscope.units import count, duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When the data set uses the device."""

    min_launches: int = 4
    """Launches and copies inside the fetch of a step; one copy of a batch is normal."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Count launches inside the loader, and replay with the fetch gone in part."""
    trace = analysis.trace
    fetch = loader_rows(analysis, is_loader_in_process)
    if fetch.size == 0:
        return
    loading = steady_extent(analysis, fetch)
    calls = analysis.in_steps(analysis.rows(Kind.LAUNCH, Kind.COPY_CALL))
    ts = trace.column("ts_ns")[calls]
    calls = calls[Coverage(loading).between(ts, ts + 1) > 0]
    each = calls.size / analysis.steps_on_host
    if each < options.min_launches:
        return
    ops = np.unique(trace.links.op[calls])
    ops = ops[ops >= 0]
    work = steady_extent(analysis, ops if ops.size else calls)
    spent = measure(work) // analysis.steps_on_host
    yield Hit(
        message=(
            f"The data set launches {count(round(each))} kernels and copies in each step while it "
            f"fetches samples: {duration(spent)} of host time."
        ),
        evidence=(
            Evidence("launches_per_step", round(each, 1), "count"),
            Evidence("host_time", spent, "ns"),
        ),
        locations=analysis.locations(calls),
        fix=Fix(
            summary="Return CPU tensors from the data set and do the work for whole batches.",
            snippet="batch = batch.to(device, non_blocking=True)\n"
            "batch = augment(batch)   # on the device, once",
            reference="https://docs.pytorch.org/docs/stable/data.html#memory-pinning",
        ),
        gain=analysis.gain(
            Change(host_cut=work, host_cut_factor=0.5),
            Change(host_cut=work, host_cut_factor=0.9, drop_calls=calls),
            Change(host_cut=loading, drop_calls=calls),
        ),
        confidence=0.7,
        claims=work,
    )


def _training(t: TraceBuilder, *, inside: bool) -> None:
    for step in range(4):
        at = step * 5_000.0
        t.step(at, 5_000)
        t.loader(at + 5, 3_000)
        for i in range(16):
            begin = at + 10 + i * 180 if inside else at + 3_050 + i * 20
            t.op("aten::to", begin, 15 if not inside else 150)
            t.copy("HtoD Pageable", 4096, begin + 10, 3, launch_at=begin + 4)
        t.kernel("gemm", at + 3_500, 1_450, launch_at=at + 3_450)


def _inside(t: TraceBuilder) -> None:
    _training(t, inside=True)


def _outside(t: TraceBuilder) -> None:
    _training(t, inside=False)


RULE = Rule(
    code="DL109",
    name="gpu-work-inside-dataset",
    class_="data_loading",
    summary="The data set works on the device, sample by sample.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches"}),
    evidence="L",
    references=("https://docs.pytorch.org/docs/stable/data.html",),
    examples=(
        Example("sixteen samples sent to the device by the data set", _inside, fires=True),
        Example("sixteen copies after the loader", _outside, fires=False),
    ),
    preview=True,
)
