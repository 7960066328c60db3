"""The last batch of an epoch is smaller, and that makes its step longer.

## What it finds
One recorded step whose batch is smaller than all others and which takes longer than they do,
because it compiles, takes memory from the driver or loads code.

## Why it matters
A new batch size is a new shape: `torch.compile` compiles again, cuDNN chooses again, the allocator
needs blocks of other sizes, captured graphs do not fit. It happens once an epoch, on each rank.

## How to fix it
`DataLoader(..., drop_last=True)`, or pad the last batch and mask what was added.

## Limits
Batches of many sizes are by design and not reported. How often it happens depends on the length of
an epoch, which a recording does not show.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import args_of
from kinetoscope.metrics.intervals import clip, measure
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.torch_frames import is_code_loading
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration, times

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_LAYERS = frozenset({"linear", "conv1d", "conv2d", "conv3d", "embedding"})
_INPUT = {"embedding": 1}
"""Position of the input where it is not the first argument."""


class Thresholds(Options, frozen=True):
    """What is a ragged batch that matters."""

    min_steps: int = 4
    """Recorded steps with a known batch."""
    min_ratio: float = 1.3
    """Length of its step over the median; with less to do it should be below 1."""
    min_explained: float = 0.3
    """Part of the excess in compiling, loading code or taking memory."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find the one step with a smaller batch, and look at what it did."""
    steps, sizes = _batches(analysis)
    if steps.size < options.min_steps:
        return
    found, number = np.unique(sizes, return_counts=True)
    if found.size != 2 or number.min() != 1 or found[number.argmin()] > found[number.argmax()]:
        return
    odd = int(steps[sizes == found[number.argmin()]][0])
    edges = analysis.trace.steps.edges
    lengths = np.diff(edges)
    usual = max(int(np.median(np.delete(lengths, odd))), 1)
    ratio = float(lengths[odd] / usual)
    cold = measure(clip(analysis.extent(_cold(analysis)), edges[odd], edges[odd + 1]))
    excess = int(lengths[odd]) - usual
    if ratio < options.min_ratio or cold < options.min_explained * excess:
        return
    yield Hit(
        message=(
            f"One step has a batch of {count(int(found[0]))} in place of {count(int(found[1]))} "
            f"and takes {times(ratio)} as long: {duration(cold)} of compiling, loading code and "
            "taking memory for the new shapes."
        ),
        evidence=(
            Evidence("batch", int(found[0]), "count"),
            Evidence("usual_batch", int(found[1]), "count"),
            Evidence("excess", excess, "ns", "derived"),
            Evidence("cold_work", cold, "ns"),
        ),
        locations=analysis.locations(analysis.rows(Kind.LOADER)),
        fix=Fix(
            summary="Drop the last, smaller batch, or pad it to the usual size.",
            snippet="DataLoader(..., drop_last=True)",
            reference="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",
        ),
        confidence=0.7,
        at_least="low",
        at_most="low",
        keep=True,
    )


def _batches(analysis: Analysis) -> tuple[IntArray, IntArray]:
    """First dimension of the first layer's input in each step where it was recorded."""
    trace = analysis.trace
    flags = trace.name_flags(lambda n: short_name(n) in _LAYERS)
    hit = flags[trace.column("name_id")] & (trace.column("kind") == Kind.CPU_OP)
    rows = np.flatnonzero(hit & (trace.column("dims_id") >= 0))
    step = trace.steps.of(trace.column("ts_ns")[rows])
    rows, step = rows[step >= 0], step[step >= 0]
    numbers, first = np.unique(step, return_index=True)
    sizes = [_batch(analysis, int(row)) for row in rows[first]]
    known = np.array([n > 0 for n in sizes], dtype=bool)
    return numbers[known], np.array(sizes, dtype=np.int64)[known]


def _batch(analysis: Analysis, row: int) -> int:
    name = short_name(analysis.trace.names[int(analysis.trace.column("name_id")[row])])
    try:
        return int(args_of(analysis.trace, row).dims[_INPUT.get(name, 0)][0])
    except (IndexError, TypeError, ValueError):
        return 0


def _cold(analysis: Analysis) -> IntArray:
    rows = (analysis.rows(Kind.COMPILE, Kind.ALLOC_CALL), analysis.matching(is_code_loading))
    return np.unique(np.concatenate(rows))


def _epoch(t: TraceBuilder, *, last: int, compiles: bool) -> None:
    at = 0.0
    for step in range(5):
        odd = step == 4
        length = 5_000 if odd and compiles else 1_000
        t.step(at, length)
        t.loader(at + 5, 40)
        if odd and compiles:
            t.annotation("_compile.compile_inner (dynamo_timed)", at + 60, 3_900)
        batch = last if odd else 64
        t.op("aten::linear", at + length - 950, 20, dims=[[batch, 256], [256, 256], [256]])
        t.kernel("gemm", at + length - 930, 900, launch_at=at + length - 945)
        at += length


def _recompiles(t: TraceBuilder) -> None:
    _epoch(t, last=17, compiles=True)


def _does_not_matter(t: TraceBuilder) -> None:
    _epoch(t, last=17, compiles=False)


RULE = Rule(
    code="DL115",
    name="ragged-last-batch",
    class_="data_loading",
    summary="The last batch of an epoch is smaller, and its new shapes cost time.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops", "shapes", "steps"}),
    evidence="S",
    references=("https://docs.pytorch.org/docs/stable/data.html",),
    examples=(
        Example("a last batch of 17 that compiles", _recompiles, fires=True),
        Example("a last batch of 17 that costs nothing", _does_not_matter, fires=False),
    ),
)
