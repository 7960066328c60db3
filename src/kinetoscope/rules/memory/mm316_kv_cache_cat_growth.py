"""A tensor is made longer by `cat` again and again, as a cache of keys and values often is.

## What it finds
`cat` operators whose largest input has the shape of an earlier result: each call copies all that
is there to add a little.

## Why it matters
Making a tensor longer by one copies all of it. For a sequence of n tokens that is n squared over
two copies, for every layer, and every new length is a new allocation.

## How to fix it
Allocate the final length once and write into it (`index_copy_`, slices): `StaticCache` of
transformers, paged attention of vLLM or SGLang. A static cache also makes CUDA graphs possible.
Where the final length is not known, double the buffer when it is full.

## Limits
What is new is written by one small kernel in place of the copy; attention then needs a mask or
the current length, which is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import clip, measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.memory._moved import moved_by_cat
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_LAUNCH_NS = 10_000
_CACHE = "https://huggingface.co/docs/transformers/kv_cache"


class Thresholds(Options, frozen=True):
    """When growing by `cat` is worth a word."""

    min_share: float = 0.03
    """Time of the copies as a share of the step."""
    min_calls: int = 8
    """Calls in the recording (RULES: eight consecutive growths)."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Replay with only what is new being written."""
    moved = analysis.get(moved_by_cat)
    inside = np.isin(moved.rows, analysis.in_window(moved.rows)) & moved.grows
    rows, new_ns = moved.rows[inside], moved.new_ns[inside]
    spent = analysis.extent(rows)
    share = measure(clip(spent, *analysis.window)) / (analysis.step_ns * analysis.steps)
    if rows.size < options.min_calls or share < options.min_share:
        return
    added = float(moved.new[inside].sum() / moved.result[inside].sum())
    each = rows.size / analysis.steps
    took = int(analysis.trace.column("dur_ns")[rows].sum()) // analysis.steps
    yield Hit(
        message=(
            f"`cat` makes tensors longer {count(round(each, 1))} times a step and copies all of "
            f"them to add {percent(added)}: {duration(took)} a step ({percent(min(share, 1.0))})."
        ),
        evidence=(
            Evidence("copy_share", round(min(share, 1.0), 4), "ratio"),
            Evidence("new_part", round(added, 5), "ratio", "derived"),
            Evidence("copies_per_step", round(each, 1), "count"),
        ),
        locations=analysis.locations(rows, calls=("cat", "concat", "concatenate")),
        fix=Fix(
            summary="Allocate the final length once and write what is new into it.",
            snippet="cache[:, :, at : at + n] = new  # in place of torch.cat([cache, new], dim=2)",
            reference=_CACHE,
        ),
        gain=analysis.gain(
            Change(durations=(rows, 2 * new_ns + 2_000), extra_host_ns=int(_LAUNCH_NS * each)),
            Change(durations=(rows, new_ns + 1_000)),
        ),
        confidence=0.9,
        claims=spent,
    )


def _growing(t: TraceBuilder, *, grows: bool) -> None:
    for step in range(12):
        at, n = step * 1_000, 1_000 + (step if grows else 0)
        t.step(at, 990)
        t.op(
            "aten::cat",
            at + 10,
            16,
            dims=[[[8, 32, n, 64], [8, 32, 1, 64]], []],
            types=["TensorList", "Scalar"],
            strides=[[[n * 2_048, n * 64, 64, 1], [2_048, 64, 64, 1]], []],
            concrete=["", "2"],
        )
        t.kernel("CatArrayBatchedCopy", at + 30, 600, launch_at=at + 14)
        t.op("aten::bmm", at + 40, 12, dims=[[256, 1, 64], [256, 64, n]])
        t.kernel("gemv", at + 630, 200, launch_at=at + 44)
        t.sync(at + 60, 780)


def _cache(t: TraceBuilder) -> None:
    _growing(t, grows=True)


def _token(t: TraceBuilder) -> None:
    _growing(t, grows=False)


RULE = Rule(
    code="MM316",
    name="kv-cache-cat-growth",
    class_="memory",
    summary="A tensor is made longer by `cat` again and again.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "shapes"}),
    evidence="E",
    references=(_CACHE,),
    examples=(
        Example("keys of 1000 tokens copied to add one", _cache, fires=True),
        Example("one row put in front of the same tensor in each step", _token, fires=False),
    ),
)
