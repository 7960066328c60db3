"""Python's garbage collector stops the step.

## What it finds
Runs of the garbage collector inside the steps: an explicit `gc.collect()`, or automatic ones when
the recording was made with `record_python_gc_info`.

## Why it matters
A full collection walks over every container that Python knows, which takes tens of milliseconds
in a program with a model in memory. In a job of many ranks each rank collects at another moment,
and all of them wait each time.

## How to fix it
Collect when nobody waits: `gc.disable()` before the loop and `gc.collect(1)` every thousand steps,
at the same step on every rank. `gc.freeze()` after the set-up takes what exists out of later
collections. Delete a `gc.collect()` that only runs to free device memory: it does not.

## Limits
Automatic collections are only visible with
`_ExperimentalConfig(record_python_gc_info=True)`. What other ranks lose by waiting is not part of
the prediction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When collections are worth a word."""

    min_share: float = 0.01
    """Time in the collector as a share of the steps."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Add up the collections outside compilers and replay without them."""
    rows = analysis.in_steps(analysis.rows(Kind.GC))
    if rows.size:
        rows = rows[~_compiling(analysis, rows)]
    if rows.size == 0:
        return
    collecting = analysis.extent(rows)
    low, high = analysis.times.host_window
    per_step = measure(collecting) // analysis.steps_on_host
    if measure(collecting) < options.min_share * (high - low):
        return
    longest = int(analysis.trace.column("dur_ns")[rows].max())
    yield Hit(
        message=(
            f"Python's garbage collector runs {rows.size} times in the recorded steps and takes "
            f"{duration(per_step)} of each; the longest run took {duration(longest)}."
        ),
        evidence=(
            Evidence("collector_time", per_step, "ns"),
            Evidence("longest", longest, "ns"),
            Evidence("collections", int(rows.size), "count"),
        ),
        locations=analysis.locations(rows, calls=("collect",)),
        fix=Fix(
            summary="Switch automatic collection off and collect at fixed, rare steps.",
            snippet="gc.collect(); gc.freeze(); gc.disable()\n"
            "for step, batch in enumerate(loader):\n"
            "    ...\n"
            "    if step % 1000 == 0:\n        gc.collect(1)",
            reference="https://docs.python.org/3/library/gc.html#gc.freeze",
        ),
        gain=analysis.gain(Change(host_cut=collecting)),
        confidence=0.9,
        claims=collecting,
    )


def _compiling(analysis: Analysis, rows: IntArray) -> npt.NDArray[np.bool_]:
    """Collections inside a compiler belong to it."""
    tree = analysis.trace.tree
    node = tree.node_of[rows]
    around = tree.nearest_of(Kind.COMPILE)
    return np.asarray((node >= 0) & (around[np.maximum(node, 0)] >= 0))


def _collecting(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000.0
        t.step(at, 10_000)
        t.python("train.py(10): step", at + 5, 9_990)
        t.kernel("gemm", at + 30, 6_000, launch_at=at + 10, op="aten::mm")
        t.gc(at + 100, 9_800)


def _hidden(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000.0
        t.step(at, 10_000)
        t.kernel("gemm", at + 30, 9_980, launch_at=at + 10, op="aten::mm")
        t.gc(at + 100, 2_000)


RULE = Rule(
    code="FW518",
    name="garbage-collection-pause",
    class_="framework",
    summary="Python's garbage collector stops the step.",
    check=check,
    options=Thresholds(),
    evidence="E",
    remedies=("garbage-collection",),
    references=("https://docs.python.org/3/library/gc.html#gc.freeze",),
    examples=(
        Example("a collection that lasts longer than the device work", _collecting, fires=True),
        Example("a collection while the device is busy", _hidden, fires=False),
    ),
)
