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
Where the final length is not known, double the buffer when it is full. A tensor that nothing reads
before it is complete needs no buffer: append the parts to a list and join them once at the end.

## Limits
What is new is written by one small kernel in place of the copy; attention then needs a mask or
the current length, which is not counted. Whether a growing tensor is read meanwhile is told by the
sizes of what other operators take.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import args_of
from kinetoscope.metrics.intervals import clip, measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Gain
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.memory._moved import moved_by_cat
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray, Trace
from kinetoscope.units import duration, how_often, percent

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
    unread = each >= options.min_calls and _unread(analysis, rows)
    yield Hit(
        message=(
            f"`cat` makes tensors longer {how_often(each)} a step and copies all of "
            f"them to add {percent(added)}: {duration(took)} a step ({percent(min(share, 1.0))})."
            + (" Nothing reads them in between." if unread else "")
        ),
        evidence=(
            Evidence("copy_share", round(min(share, 1.0), 4), "ratio"),
            Evidence("new_part", round(added, 5), "ratio", "derived"),
            Evidence("copies_per_step", round(each, 1), "count"),
        ),
        locations=analysis.locations(rows, calls=("cat", "concat", "concatenate")),
        fix=_LIST if unread else _BUFFER,
        gain=_joined_once(analysis, rows, new_ns)
        if unread
        else analysis.gain(
            Change(durations=(rows, 2 * new_ns + 2_000), extra_host_ns=int(_LAUNCH_NS * each)),
            Change(durations=(rows, new_ns + 1_000)),
        ),
        confidence=0.9,
        claims=spent,
    )


_BUFFER = Fix(
    summary="Allocate the final length once and write what is new into it.",
    snippet="cache[:, :, at : at + n] = new  # in place of torch.cat([cache, new], dim=2)",
    reference=_CACHE,
)
_LIST = Fix(
    summary="Append the parts to a list and join them once, when all are there.",
    snippet="parts.append(new)   # in place of whole = torch.cat([whole, new], dim=1)\n"
    "whole = torch.cat(parts, dim=1)   # once, at the end",
    reference="https://docs.pytorch.org/docs/stable/generated/torch.cat.html",
)
_READ = 0.25
"""Part of the lengths that other operators must take before a tensor counts as read: the first
ones may have the size of a part, and the last one is used."""


def _unread(analysis: Analysis, rows: IntArray) -> bool:
    """Does no other operator take the tensors while they grow?"""
    trace = analysis.trace
    joins = np.unique(trace.links.op[rows])
    grown = {n for op in joins.tolist() for n in (_longest(trace, op),) if n}
    names = trace.name_flags(lambda n: short_name(n) == "cat")
    others = analysis.rows(Kind.CPU_OP)
    others = others[~names[trace.column("name_id")[others]]]
    _, first = np.unique(trace.column("dims_id")[others], return_index=True)
    taken = (args_of(trace, op) for op in others[first].tolist())
    read = grown & {prod(args.shape(i)) for args in taken for i in args.tensors()}
    return len(grown) > 1 and len(read) < _READ * len(grown)


def _longest(trace: Trace, op: int) -> int:
    """Elements of the tensor that a `cat` makes longer; 0: not recorded."""
    dims = args_of(trace, op).dims
    parts = dims[0] if dims and isinstance(dims[0], list) else []
    return max((prod(part) for part in parts if isinstance(part, list)), default=0)


def _joined_once(analysis: Analysis, rows: IntArray, new_ns: IntArray) -> Gain:
    """All joins go, on the host as well, but the last one of each step, which copies everything.

    Cautious: a buffer is filled instead, with a launch for each part.
    """
    links = analysis.trace.links
    step = analysis.trace.steps.of(analysis.trace.column("ts_ns")[links.op[rows]])
    gone = rows[:-1][step[1:] == step[:-1]]
    without = Change(
        host_cut=analysis.extent(np.unique(links.op[gone])), drop_calls=links.launch[gone]
    )
    return analysis.gain(Change(durations=(rows, 2 * new_ns + 2_000)), without)


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
