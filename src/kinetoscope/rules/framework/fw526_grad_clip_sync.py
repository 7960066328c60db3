"""Clipping the gradients makes the host wait, or goes through them one by one.

## What it finds
Inside `clip_grad_norm_`: a value that is read by the host (`error_if_nonfinite=True`), or a norm
for each parameter instead of one operation for all.

## Why it matters
The read stops the host in the middle of the step, right before the optimizer could be launched.
A norm for each parameter is two launches for each.

## How to fix it
`clip_grad_norm_(parameters, max_norm, foreach=True, error_if_nonfinite=False)`. Log the norm that
it returns like a loss: keep the tensor and read it every hundred steps.

## Limits
A read of the norm outside `clip_grad_norm_` (`norm.item()` in the loop) is reported as FW503.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import measure, merge
from kinetoscope.metrics.waits import Wait
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._waiting import avoidable, calls_inside
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.frames import is_grad_clip_frame
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When clipping is worth a word."""

    many_norms: float = 8.0
    """Norms of single tensors a step; the grouped path needs one for each device and type."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Look into the frames of gradient clipping."""
    inside = _inside(analysis)
    waits = avoidable(analysis, Wait.SCALAR, Wait.SHAPE)
    waits = waits.where(inside[analysis.trace.tree.node_of[waits.call]])
    norms = _norms(analysis, inside)
    steps = analysis.steps_on_host
    single = norms if norms.size / steps >= options.many_norms else norms[:0]
    if waits.call.size == 0 and single.size == 0:
        return
    ops = np.unique(waits.op)
    reading, looping = analysis.extent(ops), analysis.extent(single)
    gone = np.concatenate((waits.calls, calls_inside(analysis, single)))
    both = merge(reading, looping)
    what = [f"reads {waits.call.size / steps:,.0f} values back"] if waits.call.size else []
    if single.size:
        what.append(f"computes {single.size / steps:,.0f} norms one by one")
    yield Hit(
        message=(
            f"Gradient clipping {' and '.join(what)}, {duration(measure(both) // steps)} of "
            "each step on the host."
        ),
        evidence=(
            Evidence("reads_per_step", round(waits.call.size / steps, 1), "count"),
            Evidence("single_norms_per_step", round(single.size / steps, 1), "count"),
            Evidence("clip_time", measure(both) // steps, "ns"),
        ),
        locations=analysis.locations(
            np.concatenate((ops, single)), calls=("clip_grad_norm_", "clip_grad_value_")
        ),
        fix=Fix(
            summary="Clip all gradients in one operation and do not read the norm.",
            snippet="torch.nn.utils.clip_grad_norm_(\n"
            "    model.parameters(), max_norm, foreach=True, error_if_nonfinite=False)",
            reference="https://docs.pytorch.org/docs/stable/generated/"
            "torch.nn.utils.clip_grad_norm_.html",
        ),
        gain=analysis.gain(
            Change(unblock=waits.calls),
            Change(unblock=waits.calls, drop_calls=gone, host_cut=both),
        ),
        confidence=0.9,
        claims=both,
        at_most="medium",
    )


def _inside(analysis: Analysis) -> npt.NDArray[np.bool_]:
    """Call-tree nodes inside gradient clipping."""
    trace, tree = analysis.trace, analysis.trace.tree
    flags = trace.name_flags(is_grad_clip_frame)
    if not flags.any():
        return np.zeros(tree.rows.size, dtype=bool)
    return nearest(flags[trace.column("name_id")[tree.rows]], tree.parent) >= 0


def _norms(analysis: Analysis, inside: npt.NDArray[np.bool_]) -> IntArray:
    trace, tree = analysis.trace, analysis.trace.tree
    table = trace.name_flags(lambda n: short_name(n) in ("linalg_vector_norm", "norm"))
    hit = inside & table[trace.column("name_id")[tree.rows]] & (tree.kind == Kind.CPU_OP)
    return analysis.in_steps(np.sort(tree.rows[hit]))


def _clip(t: TraceBuilder, foreach: bool) -> None:
    for step in range(4):
        at = step * 3_000.0
        t.step(at, 3_000)
        t.python("train.py(10): step", at + 5, 2_990)
        t.kernel("gemm", at + 30, 500, launch_at=at + 10, op="aten::mm")
        t.python("torch/nn/utils/clip_grad.py(170): clip_grad_norm_", at + 600, 2_000)
        for i in range(1 if foreach else 40):
            name = "aten::_foreach_norm" if foreach else "aten::linalg_vector_norm"
            begin = at + 610 + i * 45
            t.kernel("reduce_kernel", begin + 20, 3, launch_at=begin + 5, op=name)
        t.kernel("adam", at + 2_700, 200, launch_at=at + 2_650, op="aten::_fused_adam_")


def _one_by_one(t: TraceBuilder) -> None:
    _clip(t, foreach=False)


def _grouped(t: TraceBuilder) -> None:
    _clip(t, foreach=True)


RULE = Rule(
    code="FW526",
    name="grad-clip-sync",
    class_="framework",
    summary="Clipping the gradients makes the host wait, or goes through them one by one.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"stacks", "ops"}),
    evidence="ES",
    references=(
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html",
    ),
    examples=(
        Example("forty norms, one for each parameter", _one_by_one, fires=True),
        Example("one norm for all parameters", _grouped, fires=False),
    ),
)
