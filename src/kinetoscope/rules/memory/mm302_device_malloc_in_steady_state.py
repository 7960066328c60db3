"""Device memory is still being taken from the driver while the program should be warm.

## What it finds
`cudaMalloc` (`hipMalloc`, `cuMemCreate`, ...) in most of the recorded steps, not only in the
first.

## Why it matters
PyTorch keeps freed memory in a cache, so that a warm program asks the driver for none. A call to
the driver costs 0.1 ms to several ms, during which no kernel is launched, and may wait for the
device. It goes on when sizes keep growing (a `cat` that gets longer, ever longer sequences), when
sizes change so much that no cached block fits, or when something empties the cache.

## How to fix it
Run the largest shape first, pad or bucket lengths, write into a buffer of the final size in place
of `torch.cat`, do not call `empty_cache()`. `PYTORCH_ALLOC_CONF=expandable_segments:True` makes
growth cheap and fragmentation rare.

## Limits
The first steps of a program allocate by right. A program that has not met its largest input yet
does so now and then; the rule needs the calls in most steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Gain
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.memory._allocator import driver_calls, steps_with
from kinetoscope.rules.spread import spread
from kinetoscope.trace.kinds import DEVICE_WORK
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


_CATS = frozenset(("cat", "stack", "hstack", "vstack"))


class Thresholds(Options, frozen=True):
    """When calls to the driver are worth a word."""

    min_steps: float = 0.6
    """Share of the steps after the first one that make such calls."""
    min_share: float = 0.01
    """Their time as a share of the step (RULES: 1 %)."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Count the steps that still allocate, and time the calls."""
    calls = driver_calls(analysis)
    if analysis.steps_on_host < 2 or steps_with(analysis, calls.taken) < options.min_steps:
        return
    spent = analysis.extent(calls.taken)
    share = measure(spent) / (analysis.step_ns * calls.steps)
    if share < options.min_share:
        return
    each = calls.taken.size / calls.steps
    dur = analysis.trace.column("dur_ns")[calls.taken]
    yield Hit(
        message=f"Each step takes device memory from the driver {_how_often(each)}, "
        f"{duration(measure(spent) // calls.steps)} ({percent(min(share, 1.0))} of the step); "
        "a warm program takes none.",
        evidence=(
            Evidence("calls_per_step", round(each, 1), "count"),
            Evidence("time_per_step", measure(spent) // calls.steps, "ns"),
            Evidence("longest_call", int(dur.max()), "ns"),
        ),
        locations=analysis.locations(calls.taken),
        fix=Fix(
            summary="Allocate once: run the largest shape first, pad or bucket lengths, and write "
            "into a buffer of the final size in place of growing a tensor.",
            snippet="os.environ['PYTORCH_ALLOC_CONF'] = 'expandable_segments:True'  # before "
            "import torch",
            reference="https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",
        ),
        gain=_gain(analysis, calls.taken),
        confidence=0.9,
        claims=spent,
    )


def _how_often(each: float) -> str:
    return "once" if round(each, 1) == 1 else f"{count(round(each, 1))} times"


def _gain(analysis: Analysis, taken: IntArray) -> Gain:
    """Cautious: the calls go away; likely: a buffer of the final size also spares the copying of
    tensors that `cat` makes longer in each step."""
    spent = analysis.extent(taken)
    grown = _grown_by_cat(analysis, taken)
    return spread(
        analysis.gain(
            Change(host_cut=spent, drop_calls=taken),
            Change(host_cut=spent, drop_calls=taken, durations=(grown, np.zeros_like(grown))),
        )
    )


def _grown_by_cat(analysis: Analysis, taken: IntArray) -> IntArray:
    """Device work of the `cat` operators that had to take new memory for their result."""
    trace = analysis.trace
    ops = trace.links.op[taken]
    ops = np.unique(ops[ops >= 0])
    names = [short_name(trace.names[i]) for i in trace.column("name_id")[ops]]
    cats = ops[np.array([name in _CATS for name in names], dtype=bool)]
    rows = analysis.rows(*DEVICE_WORK)
    return rows[np.isin(trace.links.op[rows], cats)]


def _in_every_step(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 3_000
        t.step(at, 3_000)
        t.op("aten::cat", at + 10, 600)
        t.runtime("cudaMalloc", at + 20, 550)
        t.kernel("CatArrayBatchedCopy", at + 620, 2_300, launch_at=at + 600)


def _in_the_first_step(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 3_000
        t.step(at, 3_000)
        t.op("aten::cat", at + 10, 600)
        if step == 0:
            t.runtime("cudaMalloc", at + 20, 550)
        t.kernel("CatArrayBatchedCopy", at + 620, 2_300, launch_at=at + 600)


RULE = Rule(
    code="MM302",
    name="device-malloc-in-steady-state",
    class_="memory",
    summary="Device memory is taken from the driver in every step.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"steps"}),
    evidence="TS",
    remedies=("expandable-segments",),
    references=("https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",),
    examples=(
        Example("a cudaMalloc of 0.55 ms in each step", _in_every_step, fires=True),
        Example("the same in the first step only", _in_the_first_step, fires=False),
    ),
)
