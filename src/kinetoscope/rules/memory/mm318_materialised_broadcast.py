"""A tensor is copied several times over in place of being broadcast.

## What it finds
`repeat`, `expand` followed by a copy, and the like, whose result is four times as large as what
they were given or more.

## Why it matters
Operators broadcast by themselves: a tensor of size 1 along a dimension is read as often as needed
from the cache. A copy writes it out and the next operator reads all of that from memory, and the
backward pass adds the copies up again.

## How to fix it
Let operators broadcast (`x[:, None] * y`), or `expand` without a copy. For grouped-query
attention `scaled_dot_product_attention(..., enable_gqa=True)` in place of repeating keys and
values; for masks `is_causal=True` or a mask with dimensions of size 1.

## Limits
A kernel that needs dense input (an in-place write, a library call) needs the copy; whether the
next operator broadcasts is not recorded, so half of the copies is the cautious estimate.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.cost_args import Args
from kinetoscope.metrics.device_ops import DeviceOps, args_of, device_ops
from kinetoscope.metrics.transfers import outer_ops
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules._inside import owner_of
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import busy_share, extent_of, per_step_ns, places
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration, percent, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_SDPA = (
    "https://docs.pytorch.org/docs/stable/generated/"
    "torch.nn.functional.scaled_dot_product_attention.html"
)
_BROADCAST = "https://docs.pytorch.org/docs/stable/notes/broadcasting.html"
_ATTENTION_RANK = 4


class Thresholds(Options, frozen=True):
    """When copies of one tensor are worth a word."""

    min_times: float = 4.0
    """Size of the result over that of what was given (RULES, MM318)."""
    min_bytes: int = 1 << 20
    """Smallest result; less stays in the cache."""
    min_share: float = 0.02
    """Share of the busy time in such copies."""
    removed: tuple[float, float, float] = (0.5, 1.0, 1.0)
    """Part of the copies that goes."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find copies of expanded tensors, and replay without them."""
    work = analysis.get(device_ops)
    which, times = _copies(analysis, work, options)
    rows = work.rows[which]
    if rows.size == 0 or busy_share(analysis, rows) < options.min_share:
        return
    share, spent = busy_share(analysis, rows), per_step_ns(analysis, rows)
    longest = int(which[work.ns[which].argmax()])
    args = args_of(analysis.trace, int(work.op[longest]))
    maker = _maker(analysis, work, which)
    yield Hit(
        message=(
            f"`{maker}` copies a tensor {count(round(times))} times over, to "
            f"{size(args.bytes(0))}: {duration(spent)} a step, {percent(min(share, 1.0))} of the "
            "busy time. Operators would broadcast it."
        ),
        evidence=(
            Evidence("copy_time", spent, "ns"),
            Evidence("busy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("times", round(times, 1), "count", "derived"),
            Evidence("result", args.bytes(0), "bytes"),
        ),
        locations=places(
            analysis, rows, calls=("repeat", "repeat_interleave", "expand", "contiguous", "clone")
        ),
        fix=_fix(len(args.shape(0)) >= _ATTENTION_RANK),
        gain=analysis.gain(*_changes(analysis, work, which, options)),
        confidence=0.7,
        claims=extent_of(analysis, rows),
        at_most="high",
    )


def _fix(attention: bool) -> Fix:
    if attention:
        return Fix(
            summary="Expand without a copy; in attention, let keys and values be shared by groups "
            "of heads.",
            snippet="F.scaled_dot_product_attention(q, k, v, enable_gqa=True)  # k, v not repeated",
            reference=_SDPA,
        )
    return Fix(
        summary="Let the next operator broadcast.",
        snippet="y = x[:, None, :] * w  # in place of x.repeat(...)",
        reference=_BROADCAST,
    )


def _copies(analysis: Analysis, work: DeviceOps, options: Thresholds) -> tuple[IntArray, float]:
    """Positions of copies of expanded tensors, and how many times over most time is copied."""
    found = work.named("copy_", "clone") & ~work.optimizer & ~work.backward & (work.op >= 0)
    times = np.zeros(work.rows.size)
    for group in work.groups(np.flatnonzero(found)):
        times[group] = _times_over(
            args_of(analysis.trace, int(work.op[group[0]])), options.min_bytes
        )
    which = np.flatnonzero(times >= options.min_times)
    usual = float(np.average(times[which], weights=work.ns[which] + 1)) if which.size else 0.0
    return which, usual


def _times_over(args: Args, min_bytes: int) -> float:
    """Elements that are written for each one that is read; 0 when not recorded."""
    source = 1 if args.is_tensor(1) and len(args.shape(1)) > 0 else 0
    if not args.is_tensor(source) or args.n(source) <= 1:
        return 0.0
    target = args.n(0) if args.is_tensor(0) else 0
    if max(args.n(source), target) * args.size(source) < min_bytes:
        return 0.0
    return max(args.n(source), target) / max(args.stored(source), 1)


def _maker(analysis: Analysis, work: DeviceOps, which: IntArray) -> str:
    """Name of the outermost operator under which most time is copied."""
    top = owner_of(work, outer_ops(analysis.trace))[which]
    known = top >= 0
    ids = analysis.trace.column("name_id")[analysis.trace.tree.rows[top[known]]]
    total = np.bincount(ids, weights=work.ns[which][known])
    return short_name(analysis.trace.names[int(total.argmax())])


def _changes(
    analysis: Analysis, work: DeviceOps, which: IntArray, options: Thresholds
) -> list[Change]:
    """Without the copies; at best the backward pass need not add them up either."""
    trace = analysis.trace
    outer = owner_of(work, outer_ops(trace))
    host = analysis.extent(trace.tree.rows[np.unique(outer[which][outer[which] >= 0])])
    calls = work.call[which]
    low, mid, high = (
        Change(
            durations=(work.rows[which], (work.ns[which] * (1 - part)).astype(np.int64)),
            drop_calls=calls[calls >= 0] if part == 1.0 else None,
            host_cut=host,
            host_cut_factor=0.8 * part,
        )
        for part in options.removed
    )
    back = np.flatnonzero(work.backward & _made_by(analysis, work, outer[which]))
    if back.size:
        rows = np.concatenate((work.rows[which], work.rows[back]))
        high = Change(durations=(rows, np.zeros(rows.size, dtype=np.int64)), host_cut=host)
    return [low, mid, high]


def _made_by(analysis: Analysis, work: DeviceOps, makers: IntArray) -> np.ndarray:
    """Events of the backward pass whose forward operator is one of these call-tree nodes."""
    top = outer_ops(analysis.trace)
    anchor = np.where(work.anchor >= 0, top[np.maximum(work.anchor, 0)], -1)
    return np.isin(anchor, makers[makers >= 0])


def _dense(shape: list[int]) -> list[int]:
    return [prod(shape[i + 1 :]) for i in range(len(shape))]


def _repeating(t: TraceBuilder, heads: int, dur: float) -> None:
    small, large = [4, 8, 1, 2_048, 128], [4, 8, heads, 2_048, 128]
    strides = [8 * 2_048 * 128, 2_048 * 128, 0, 128, 1]
    for step in range(4):
        at = step * 4_000
        t.step(at, 3_990)
        t.op("aten::repeat", at + 10, 30, dims=[small, []])
        t.op(
            "aten::copy_",
            at + 14,
            20,
            dims=[large, large, []],
            strides=[_dense(large), strides, []],
        )
        t.kernel("elementwise_kernel", at + 40, dur, launch_at=at + 18)
        t.op("aten::bmm", at + 50, 12, dims=[[256, 2048, 128], [256, 128, 2048]])
        t.kernel("gemm", at + 40 + dur, 2_000, launch_at=at + 54)
        t.sync(at + 70, 1_980 + dur)


def _grouped(t: TraceBuilder) -> None:
    _repeating(t, 8, 400)


def _twice(t: TraceBuilder) -> None:
    _repeating(t, 2, 100)


RULE = Rule(
    code="MM318",
    name="materialised-broadcast",
    class_="memory",
    summary="A tensor is copied several times over in place of being broadcast.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "shapes"}),
    evidence="E",
    references=(_SDPA, _BROADCAST),
    examples=(
        Example("keys copied for each of eight heads of a group", _grouped, fires=True),
        Example("two heads to a group", _twice, fires=False),
    ),
)
