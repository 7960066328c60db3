"""Gradients are filled with zeros, one tensor after the other, in place of being dropped.

## What it finds
`zero_grad` that runs `zero_` on many tensors in each step, and the additions to those zeros that
the backward pass then has to make.

## Why it matters
Each tensor costs an operator and a launch to clear it, and another one to add the new gradient to
the zeros. With `set_to_none=True`, the default since torch 2.0, there is neither: the backward
pass stores its gradient.

## How to fix it
`optimizer.zero_grad(set_to_none=True)`; the same for `model.zero_grad`.

## Limits
Parameters without a gradient are then skipped by the optimizer, where before they got a step with
a gradient of zero. Additions stay where gradients are accumulated over several backward passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Coverage, measure, merge
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._surroundings import steady_extent, within
from kinetoscope.rules.framework._waiting import calls_inside
from kinetoscope.trace.distributed_frames import is_gradient_hook
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.torch_frames import is_zero_grad
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When clearing is worth a word."""

    min_tensors: int = 8
    """Tensors cleared one by one in a step; the grouped `_foreach_zero_` is one call."""
    cautious: float = 0.6
    """Part of the time of `zero_grad` that goes away at the cautious end: a loop over the
    parameters remains."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Count what `zero_grad` clears and the additions that follow from it."""
    trace, tree = analysis.trace, analysis.trace.tree
    ranges = trace.tree.named(is_zero_grad)
    clearing = _cleared(analysis, tree.rows[ranges])
    steps = analysis.steps_on_host
    each = clearing.size / steps
    if each < options.min_tensors:
        return
    marks = analysis.in_steps(tree.rows[ranges])
    clear = steady_extent(analysis, np.concatenate((marks, clearing)))
    adding = _needless(analysis, int(each))
    add = steady_extent(analysis, adding)
    gone = calls_inside(analysis, np.concatenate((clearing, adding)))
    cleared = calls_inside(analysis, clearing)
    spent = merge(clear, add)
    yield Hit(
        message=(
            f"`zero_grad` fills {count(round(each))} gradients with zeros in each step, one by "
            f"one, and the backward pass adds to them: {duration(measure(spent) // steps)} of "
            "host time a step."
        ),
        evidence=(
            Evidence("cleared_tensors", round(each, 1), "count"),
            Evidence("clear_time", measure(clear) // steps, "ns"),
            Evidence("additions", round(adding.size / steps, 1), "count"),
            Evidence("addition_time", measure(add) // steps, "ns"),
        ),
        locations=analysis.locations(clearing, calls=("zero_grad",)),
        fix=Fix(
            summary="Drop the gradients in place of clearing them.",
            snippet="optimizer.zero_grad(set_to_none=True)",
            reference="https://docs.pytorch.org/docs/stable/generated/"
            "torch.optim.Optimizer.zero_grad.html",
        ),
        gain=analysis.gain(
            Change(host_cut=clear, host_cut_factor=options.cautious, drop_calls=cleared),
            Change(host_cut=spent, host_cut_factor=0.9, drop_calls=gone),
            Change(host_cut=spent, drop_calls=gone),
        ),
        confidence=0.9,
        claims=spent,
    )


def _cleared(analysis: Analysis, ranges: IntArray) -> IntArray:
    """The `zero_` operators during `zero_grad`, in the steady steps."""
    if ranges.size == 0:
        return ranges
    rows = _named(analysis, "zero_")
    ts = analysis.trace.column("ts_ns")[rows]
    return rows[Coverage(analysis.extent(ranges)).between(ts, ts + 1) > 0]


def _named(analysis: Analysis, name: str) -> IntArray:
    """Operators of this short name in the steady steps."""
    rows = analysis.matching(lambda text: short_name(text) == name)
    return analysis.in_steps(rows[analysis.trace.column("kind")[rows] == Kind.CPU_OP])


def _needless(analysis: Analysis, tensors: int) -> IntArray:
    """The first additions of each step, one for each tensor that was cleared."""
    hooks = within(analysis.trace, analysis.trace.tree.named(is_gradient_hook))
    rows = _named(analysis, "add_")
    rows = rows[hooks[analysis.trace.tree.node_of[rows]]]
    step = analysis.trace.steps.of(analysis.trace.column("ts_ns")[rows])
    first = np.searchsorted(step, step, side="left")
    return rows[np.arange(rows.size) - first < tensors]


def _training(t: TraceBuilder, *, zeros: bool) -> None:
    for step in range(4):
        at = step * 2_000.0
        t.step(at, 2_000)
        t.annotation("Optimizer.zero_grad#SGD.zero_grad", at + 5, 420)
        for i in range(20 if zeros else 0):
            t.op("aten::zero_", at + 10 + i * 20, 15)
            t.kernel("fill", at + 20 + i * 20, 2, launch_at=at + 13 + i * 20)
        for i in range(20):
            name, begin = "torch::autograd::AccumulateGrad", at + 500 + i * 40
            t.backward(name, begin, 30, seq=i, tid=t.tid)
            t.op("aten::add_" if zeros else "aten::detach", begin + 2, 20)
            t.kernel("add", begin + 20, 2, launch_at=begin + 8)


def _zeros(t: TraceBuilder) -> None:
    _training(t, zeros=True)


def _none(t: TraceBuilder) -> None:
    _training(t, zeros=False)


RULE = Rule(
    code="FW509",
    name="zero-grad-launches",
    class_="framework",
    summary="Gradients are cleared one by one, and the backward pass adds to the zeros.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops"}),
    evidence="E",
    remedies=("zero-grad",),
    references=(
        "https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    ),
    examples=(
        Example("twenty gradients cleared and added to", _zeros, fires=True),
        Example("gradients that are dropped", _none, fires=False),
    ),
)
