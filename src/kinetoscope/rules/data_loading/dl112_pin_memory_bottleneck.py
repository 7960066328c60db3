"""Pinned memory is taken anew for each batch.

## What it finds
Calls that pin host memory (`cudaHostAlloc`, `cudaHostRegister`) in most of the steady steps.

## Why it matters
Pinning memory is a system call that touches every page: about a millisecond for each ten megabytes.
The allocator keeps pinned blocks for reuse; batches of ever new sizes defeat it.

## How to fix it
Batches of one size, or buffers that are pinned once and filled again. Do not call `.pin_memory()`
on what the loader has pinned already.

## Limits
A preview. The first steps fill the cache of pinned blocks and are not counted.
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
from kinetoscope.rules.framework._surroundings import steady_extent
from kinetoscope.trace.frames import is_host_memory_call
from kinetoscope.trace.kinds import Kind
from kinetoscope.units import duration, how_often

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When pinning goes on."""

    min_steps: float = 0.6
    """Part of the steady steps with such a call."""
    min_per_step: float = 1.0
    """Calls in a step."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find the calls, and replay the steps without them."""
    trace = analysis.trace
    rows = analysis.in_steps(analysis.rows(Kind.ALLOC_CALL))
    names = [is_host_memory_call(trace.names[i]) for i in trace.column("name_id")[rows]]
    rows = rows[np.array(names, dtype=bool)] if rows.size else rows
    steps = np.unique(trace.steps.of(trace.column("ts_ns")[rows])).size
    each = rows.size / analysis.steps_on_host
    if each < options.min_per_step or steps < options.min_steps * analysis.steps_on_host:
        return
    pinning = steady_extent(analysis, rows)
    per_step = measure(pinning) // analysis.steps_on_host
    yield Hit(
        message=(f"Host memory is pinned anew {how_often(each)} a step: {duration(per_step)}."),
        evidence=(
            Evidence("calls_per_step", round(each, 1), "count"),
            Evidence("pin_time", per_step, "ns"),
        ),
        locations=analysis.locations(rows, calls=("pin_memory",)),
        fix=Fix(
            summary="Let batches have one size, so that pinned blocks are used again.",
            snippet="DataLoader(..., pin_memory=True, drop_last=True)",
            reference="https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
        ),
        gain=analysis.gain(Change(host_cut=pinning, host_cut_factor=0.7), Change(host_cut=pinning)),
        confidence=0.7,
        claims=pinning,
        at_most="medium",
    )


def _training(t: TraceBuilder, *, pins: bool) -> None:
    for step in range(4):
        at = step * 4_000.0
        t.step(at, 4_000)
        if pins:
            t.op("aten::_pin_memory", at + 5, 1_550)
            t.runtime("cudaHostAlloc", at + 20, 1_500)
        begin = at + (1_600 if pins else 20)
        t.kernel("gemm", begin + 10, at + 3_990 - begin - 10, launch_at=begin)


def _pins(t: TraceBuilder) -> None:
    _training(t, pins=True)


def _reuses(t: TraceBuilder) -> None:
    _training(t, pins=False)


RULE = Rule(
    code="DL112",
    name="pin-memory-bottleneck",
    class_="data_loading",
    summary="Pinned memory is taken anew for each batch.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"launches", "steps"}),
    evidence="L",
    references=("https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",),
    examples=(
        Example("1.5 ms of pinning in each step", _pins, fires=True),
        Example("pinned blocks that are used again", _reuses, fires=False),
    ),
    preview=True,
)
