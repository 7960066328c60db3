"""Filling tensors with a constant takes a sizeable part of the step.

## What it finds
Kernels and memsets that only write a constant (`zeros`, `full`, `new_zeros`, `fill_`) for 5 % of
the device's busy time or more than 50 times a step.

## Why it matters
They compute nothing. Usually a mask or a buffer is created anew in every step, or memory is
cleared that the next operator overwrites. In the backward pass every slice `x[:, i]` makes a
tensor of zeros of the size of `x` and adds it to the others.

## How to fix it
Create constants once and keep them (`register_buffer`); `torch.empty` where everything is
overwritten. Take a tensor apart with `unbind`, `split` or `chunk`, whose backward is one `cat`,
in place of slices.

## Limits
Whether the zeros are needed is not recorded: a third of the time is the cautious estimate. Zeros
that `zero_grad` writes (MM307) or the gradient of an embedding needs (MM317) are left to those
rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import DeviceOps, device_ops
from kinetoscope.metrics.transfers import outer_ops
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules._inside import nearest_named, owner_of
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import busy_share, extent_of, per_step_ns, places
from kinetoscope.trace.distributed_frames import is_distributed_copy
from kinetoscope.trace.frames import is_zero_grad
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_FILLS = frozenset({"fill_", "zero_", "_foreach_zero_"})
_ELSEWHERE = frozenset(
    "embedding_dense_backward _index_put_impl_ index_put_ convolution_backward mm bmm addmm "
    "max_pool2d_with_indices_backward scatter_add_ index_add_ nonzero".split()
)
"""Operators whose own zeros are part of them."""
_PARTS = ("SliceBackward", "SelectBackward", "slice_backward", "select_backward")


class Thresholds(Options, frozen=True):
    """When writing constants is worth a word."""

    min_share: float = 0.05
    """Share of the busy time (RULES, MM310)."""
    many: int = 50
    """From so many fills in a step on their launches count too."""
    saved: tuple[float, float, float] = (0.3, 0.7, 1.0)
    """Part of the fills that the fix avoids."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find fills that no other rule explains, and replay with fewer of them."""
    work = analysis.get(device_ops)
    which = _fills(analysis, work)
    rows = work.rows[which]
    inside = analysis.in_window(rows)
    if rows.size == 0:
        return
    each = inside.size / analysis.steps
    share = busy_share(analysis, rows)
    if share < options.min_share and each < options.many:
        return
    spent = per_step_ns(analysis, rows)
    parts = _of_parts(analysis, work, which)
    maker = _maker(analysis, work, which)
    why = "; they hold the gradients of slices" if parts > 0.5 else f"; most come from `{maker}`"
    outer = _outer_rows(analysis, work, which)
    host = analysis.extent(outer)
    calls = work.call[which]
    yield Hit(
        message=(
            f"Writing constants takes {duration(spent)} a step ({percent(min(share, 1.0))} of the "
            f"device's busy time), {count(round(each))} times{why}."
        ),
        evidence=(
            Evidence("fill_time", spent, "ns"),
            Evidence("busy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("fills_per_step", round(each, 1), "count"),
            Evidence("in_gradients_of_slices", round(parts, 6), "ratio", "derived"),
        ),
        locations=places(analysis, rows, calls=("zeros", "full", "new_zeros", "zeros_like")),
        fix=_fix(parts > 0.5),
        gain=analysis.gain(
            *(
                Change(
                    durations=(rows, (work.ns[which] * (1 - part)).astype(np.int64)),
                    drop_calls=calls[calls >= 0] if part == 1.0 else None,
                    host_cut=host,
                    host_cut_factor=part,
                )
                for part in options.saved
            )
        ),
        confidence=0.7,
        claims=extent_of(analysis, rows),
        at_most="medium",
    )


def _fix(parts: bool) -> Fix:
    if parts:
        return Fix(
            summary="Take the tensor apart with unbind, split or chunk: their backward is one cat.",
            snippet="first, second = x.chunk(2, dim=-1)  # in place of x[..., :n], x[..., n:]",
            reference="https://docs.pytorch.org/docs/stable/generated/torch.chunk.html",
        )
    return Fix(
        summary="Create constants once and keep them, or use torch.empty where all is overwritten.",
        snippet='self.register_buffer("mask", torch.zeros(n, n))  # in __init__, not in forward',
        reference="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    )


def _fills(analysis: Analysis, work: DeviceOps) -> IntArray:
    """Positions of fills outside other operators, optimizers, zero_grad and collectives."""
    fills = work.by_op_name(_FILLS.__contains__) & ~work.optimizer

    def elsewhere(name: str) -> bool:
        return short_name(name) in _ELSEWHERE or is_zero_grad(name) or is_distributed_copy(name)

    fills &= owner_of(work, nearest_named(analysis.trace, elsewhere)) < 0
    return np.flatnonzero(fills)


def _of_parts(analysis: Analysis, work: DeviceOps, which: IntArray) -> float:
    """Share of the time in fills that the backward of slices makes."""
    around = nearest_named(analysis.trace, lambda n: short_name(n).startswith(_PARTS))
    mine = owner_of(work, around)[which] >= 0
    return float(work.ns[which][mine].sum() / max(int(work.ns[which].sum()), 1))


def _outer_rows(analysis: Analysis, work: DeviceOps, which: IntArray) -> IntArray:
    """Rows of the outermost operators around the fills, the engine's own ones not counted."""
    tree = analysis.trace.tree
    top = owner_of(work, outer_ops(analysis.trace))[which]
    inner = work.op[which]
    rows = np.where((top >= 0) & ~work.backward[which], tree.rows[np.maximum(top, 0)], inner)
    return np.unique(rows[rows >= 0])


def _maker(analysis: Analysis, work: DeviceOps, which: IntArray) -> str:
    rows = owner_of(work, outer_ops(analysis.trace))[which]
    known = rows >= 0
    if not known.any():
        return "fill_"
    ids = analysis.trace.column("name_id")[analysis.trace.tree.rows[rows[known]]]
    total = np.bincount(ids, weights=work.ns[which][known])
    return short_name(analysis.trace.names[int(total.argmax())])


def _filling(t: TraceBuilder, fill_us: float) -> None:
    for step in range(4):
        at = step * 2_000
        t.step(at, 1_990)
        t.op("aten::zeros", at + 10, 20, dims=[[], []])
        t.op("aten::zero_", at + 14, 12, dims=[[8192, 8192]])
        t.kernel("FillFunctor", at + 30, fill_us, launch_at=at + 18)
        t.op("aten::mm", at + 40, 12, dims=[[4096, 4096], [4096, 4096]])
        t.kernel("gemm", at + 30 + fill_us, 1_000, launch_at=at + 44)
        t.sync(at + 60, 980 + fill_us)


def _large(t: TraceBuilder) -> None:
    _filling(t, 600)


def _small(t: TraceBuilder) -> None:
    _filling(t, 20)


RULE = Rule(
    code="MM310",
    name="memset-heavy",
    class_="memory",
    summary="Filling tensors with a constant takes a sizeable part of the step.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "ops"}),
    evidence="T",
    references=("https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",),
    examples=(
        Example("a buffer of zeros made in every step", _large, fires=True),
        Example("a small one", _small, fires=False),
    ),
)
