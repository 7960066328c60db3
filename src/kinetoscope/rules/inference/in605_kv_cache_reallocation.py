"""The key-value cache is copied as a whole for each token.

## What it finds
Inference in which `cat` joins the result of an earlier `cat` with a little more, again and again:
a cache that grows by being copied.

## Why it matters
Each token copies all keys and values of all earlier ones, in every layer. The cost grows with the
length of the text, each copy needs new memory, and changing shapes rule out CUDA graphs.

## How to fix it
Allocate the cache once at its final length and write each token into its place. In transformers:
`generation_config.cache_implementation = "static"`.

## Limits
A static cache holds memory for the longest text from the start, and attention has to mask the part
that is not filled yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import args_of, device_ops
from kinetoscope.metrics.intervals import measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Gain
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._surroundings import steady_extent
from kinetoscope.rules.framework._waiting import calls_inside
from kinetoscope.rules.inference._requests import Shape, ops_named, serves
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray, Trace
from kinetoscope.units import duration, percent, several

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_LEAST_KERNEL_NS = 2_000


class Thresholds(Options, frozen=True):
    """When a growing cache is worth a word."""

    min_joins: int = 4
    """Joins that extend an earlier result."""
    min_share: float = 0.02
    """Their time as a share of the step, on the device or on the host."""
    min_rank: int = 3
    """Dimensions of a cache: a list of tokens is not one."""
    most_new: float = 0.5
    """Part of the result that is new, at most; a cache grows by one token of many."""


@dataclass(frozen=True)
class _Joins:
    """Rows of the `cat` operators that extend an earlier result, and the new part of each."""

    rows: IntArray
    new: np.ndarray


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find joins that extend earlier ones, and replay them as writes in place."""
    if not serves(analysis):
        return
    joins = _growing(analysis, options)
    if joins.rows.size < options.min_joins:
        return
    steps = analysis.steps_on_host
    work = analysis.get(device_ops)
    mine = np.isin(work.op, joins.rows)
    kernels, ns = work.rows[mine], work.ns[mine]
    host = steady_extent(analysis, joins.rows)
    spent = int(ns.sum()) // steps if kernels.size else measure(host) // steps
    share = spent / max(analysis.step_ns, 1)
    if share < options.min_share:
        return
    each = joins.rows.size / steps
    yield Hit(
        message=(
            f"{several(each, 'join copies', 'joins copy')} a whole cache in each step "
            f"to add {percent(float(np.median(joins.new)))} to it: {duration(spent)}, "
            f"{percent(min(share, 1.0))} of the step."
        ),
        evidence=(
            Evidence("copy_time", spent, "ns"),
            Evidence("copy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("joins_per_step", round(each, 1), "count"),
            Evidence("new_part", round(float(np.median(joins.new)), 5), "ratio", "derived"),
        ),
        locations=analysis.locations(joins.rows, calls=("cat", "concat", "concatenate")),
        fix=Fix(
            summary="Allocate the cache once at its final length and write each token into it.",
            snippet="keys[:, :, at : at + 1] = k   # in place of torch.cat([keys, k], 2)\n"
            '# transformers: model.generation_config.cache_implementation = "static"',
            reference="https://huggingface.co/docs/transformers/kv_cache",
        ),
        gain=_gain(analysis, joins, kernels, ns),
        confidence=0.9,
        claims=analysis.extent(kernels) if kernels.size else host,
    )


def _gain(analysis: Analysis, joins: _Joins, kernels: IntArray, ns: IntArray) -> Gain:
    """Only what is new is written, and no memory is taken from the driver for it."""
    host = steady_extent(analysis, joins.rows)
    if not kernels.size:
        return analysis.gain(*(Change(host_cut=host, host_cut_factor=p) for p in (0.7, 0.9, 1.0)))
    order = np.argsort(joins.rows)
    op = analysis.trace.links.op[kernels]
    new = joins.new[order][np.searchsorted(joins.rows[order], op)]
    short = np.maximum(ns * new, np.minimum(ns, _LEAST_KERNEL_NS)).astype(np.int64)
    calls = calls_inside(analysis, joins.rows)
    memory = calls[np.isin(analysis.trace.column("kind")[calls], (Kind.ALLOC_CALL, Kind.FREE_CALL))]
    return analysis.gain(
        Change(durations=(kernels, np.maximum(short, ns // 4))),
        Change(durations=(kernels, short), drop_calls=memory, host_cut=analysis.extent(memory)),
    )


def _growing(analysis: Analysis, options: Thresholds) -> _Joins:
    """Joins in the steady steps whose largest part is the result of an earlier join."""
    trace = analysis.trace
    rows = ops_named(trace, "cat")
    rows = rows[trace.tree.outer_ops[trace.tree.node_of[rows]]] if rows.size else rows
    results: set[Shape] = set()
    kept, new = [], []
    for row in rows.tolist():
        join = _join(trace, row)
        if join is None:
            continue
        large, result = join
        part = 1 - prod(large) / max(prod(result), 1)
        if large in results and part <= options.most_new and len(result) >= options.min_rank:
            kept.append(row)
            new.append(part)
        results.add(result)
    found = np.array(kept, dtype=np.int64)
    inside = np.isin(found, analysis.in_steps(found))
    return _Joins(found[inside], np.array(new)[inside] if found.size else np.empty(0))


def _join(trace: Trace, row: int) -> tuple[Shape, Shape] | None:
    """Shapes of the largest part and of the result of a `cat`; None when not recorded."""
    args = args_of(trace, row)
    try:
        shapes = [tuple(int(n) for n in shape) for shape in args.dims[0]]
        axis = int(args.text(1) or 0)
        large = max(shapes, key=prod)
        result = list(large)
        result[axis] = sum(shape[axis] for shape in shapes)
    except (ValueError, TypeError, IndexError):
        return None
    if len(shapes) < 2 or any(len(shape) != len(large) for shape in shapes):
        return None
    return large, tuple(result)


def _tokens(t: TraceBuilder, *, grows: bool) -> None:
    for step in range(6):
        at = step * 1_000.0
        t.step(at, 1_000)
        for layer in range(4):
            begin, device = at + 10 + layer * 50, at + 30 + layer * 230
            past = 256 + (step if grows else 0)
            dims = [[[4, 8, past, 64], [4, 8, 1, 64]], []]
            types, values = ["TensorList", "Scalar"], ["", "2"]
            t.op("aten::cat", begin, 20, dims=dims, types=types, concrete=values)
            t.kernel("CatArrayBatchedCopy", device, 100, launch_at=begin + 8)
            t.op("aten::linear", begin + 30, 20, dims=[[4, 1, 512], [512, 512]])
            t.kernel("gemm", device + 102, 120, launch_at=begin + 36)
        t.sync(at + 220, 735)


def _grows(t: TraceBuilder) -> None:
    _tokens(t, grows=True)


def _same_size(t: TraceBuilder) -> None:
    _tokens(t, grows=False)


RULE = Rule(
    code="IN605",
    name="kv-cache-reallocation",
    class_="memory",
    summary="The key-value cache is copied as a whole for each token.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops", "shapes"}),
    evidence="E",
    references=("https://huggingface.co/docs/transformers/kv_cache",),
    examples=(
        Example("a cache that grows by one token a step", _grows, fires=True),
        Example("joins of tensors that do not grow", _same_size, fires=False),
    ),
)
