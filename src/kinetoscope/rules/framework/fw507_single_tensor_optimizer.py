"""The optimizer, or a loop beside it, updates one parameter tensor at a time.

## What it finds
An `Optimizer.step` in which every parameter tensor gets its own handful of pointwise operators,
and no operator works on lists of tensors (`_foreach_*`, `_fused_*`). The same with an optimizer for
each parameter or layer, stepped one after the other. And loops outside of optimizers that do the
same few pointwise operators with tensor after tensor of different shapes, without gradients: a
moving average of the weights, a target network that follows, clipping or decay by hand.

## Why it matters
Adam needs about eight small operators for each tensor: a model of 240 tensors launches two
thousand kernels of a microsecond each, and the host spends five to ten microseconds on every one.
The device waits meanwhile.

## How to fix it
`fused=True` in the optimizer's constructor does the whole update in a few kernels;
`foreach=True` (the default on GPUs unless something switches it off) batches each operation over
all tensors. Own optimizers and averages: use `torch._foreach_*` operators, or compile the step;
`torch.optim.swa_utils.AveragedModel` with a multi-tensor average does it for averages. One
optimizer over all parameters does in one call what one for each does in hundreds.

## Limits
`foreach=False` may have been chosen to save memory: foreach needs temporaries of the size of the
parameters, fused does not. Sparse gradients and `differentiable=True` allow neither. Optimizers
that step in hooks of the backward pass save the memory of the gradients; one for each layer keeps
most of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.cost import kernel_costs
from kinetoscope.metrics.intervals import measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Location
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._many_optimizers import host_share_of, many_optimizers
from kinetoscope.rules.framework._optimizer import (
    OptimizerSteps,
    one_for_each,
    optimizer_kernels,
    optimizer_steps,
)
from kinetoscope.rules.framework._single_tensors import ON_LISTS, single_tensors
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_LIST_OPS = 3
"""A step with this many operators on lists of tensors is not one tensor at a time."""


class Thresholds(Options, frozen=True):
    """When an optimizer of single tensors is worth a word."""

    min_updates: int = 32
    """Operators on single tensors in one step; fewer cost nothing that counts."""
    min_share: float = 0.03
    """Share of the step that the host spends in the optimizer."""
    host_left_ns: tuple[float, float, float] = (6_000.0, 2_500.0, 1_000.0)
    """Host time that each parameter still costs in a fused step, at worst, likely, at best; 1 to
    9 microseconds with profiling (torch 2.11)."""
    inflation: tuple[float, float, float] = (0.65, 0.8, 0.95)
    """Part of the optimizer's recorded time that is its own: profiling stretches code of many small
    operators more than the rest of the step. Three programs saved 0.8 to 0.9 of the share of the
    step that was recorded."""
    own_inflation: tuple[float, float, float] = (0.75, 1.0, 1.0)
    """The same for an optimizer of the program's own: a plain loop over the parameters runs few
    lines of Python for an operator, and is stretched less than the rest of the step. One such
    program saved 1.3 times the recorded share."""
    passes_left: tuple[float, float, float] = (0.8, 0.4, 0.3)
    """Traffic of the fused update over that of the single operators: Adam 7 of 19 passes."""
    cpu_saving: tuple[float, float, float] = (0.3, 0.55, 0.85)
    """Without a device: part of the optimizer's time that fusing saves."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Look at the optimizer's steps, and at loops outside of them."""
    found = analysis.get(optimizer_steps)
    if one_for_each(analysis.trace, found):
        parts, left, passes = options.own_inflation, options.host_left_ns, options.passes_left
        if host_share_of(analysis, found) >= options.min_share:
            yield many_optimizers(analysis, found, parts=parts, left_ns=left, passes=passes)
    else:
        yield from _optimizer(analysis, options, found)
    yield from single_tensors(analysis, options.min_updates, options.min_share)


def _optimizer(analysis: Analysis, options: Thresholds, found: OptimizerSteps) -> Iterator[Hit]:
    """Count operators on single tensors in the optimizer's steps and replay them fused."""
    steps = max(found.rows.size, 1)
    listed = found.foreach.size + found.fused.size
    if found.updates.size < options.min_updates * steps or listed >= _LIST_OPS * steps:
        return
    time = found.time
    per_step = measure(time) // max(analysis.trace.steps.count, 1)
    share = per_step / max(analysis.step_ns, 1)
    if share < options.min_share:
        return
    each = found.updates.size / steps
    name = " and ".join(found.names) or "The optimizer"
    yield Hit(
        message=(
            f"{name} updates one tensor at a time: {count(round(each))} operators in a step, "
            f"{duration(per_step)} of the host's time ({percent(min(share, 1.0))} of the step)."
        ),
        evidence=(
            Evidence("optimizer_time", per_step, "ns"),
            Evidence("operators_per_step", round(each), "count"),
            Evidence("tensors", _tensors(analysis, found), "count", "derived"),
        ),
        locations=_places(analysis, found),
        fix=_fix(analysis, found),
        gain=analysis.gain(*_changes(analysis, options, found)),
        confidence=0.9,
        claims=time,
    )


def _tensors(analysis: Analysis, found: OptimizerSteps) -> int:
    """Parameter tensors: how often the usual operator occurs in a step."""
    ids = analysis.trace.column("name_id")[found.updates]
    counts = np.unique(ids, return_counts=True)[1]
    return max(round(float(np.median(counts)) / max(found.rows.size, 1)), 1)


def _own(analysis: Analysis, found: OptimizerSteps) -> bool:
    """Did the program write the optimizer? Then its own functions run inside the step."""
    tree, rows = analysis.trace.tree, found.rows
    frame = analysis.locator.frames(found.updates)
    if not (frame >= 0).any():
        return False
    start = np.sort(analysis.trace.column("ts_ns")[rows])
    step = np.searchsorted(start, analysis.trace.column("ts_ns")[found.updates], side="right") - 1
    inside = (frame >= 0) & (tree.start[np.maximum(frame, 0)] >= start[np.maximum(step, 0)])
    return bool(inside.mean() > 0.5)


def _places(analysis: Analysis, found: OptimizerSteps) -> tuple[Location, ...]:
    """The function that updates, when it is the program's; then the one that calls the step."""
    outer = analysis.locations(found.rows, calls=("step",))
    if not _own(analysis, found):
        return outer
    inner = analysis.locations(found.updates, top=2)
    known = {(place.file, place.function) for place in inner}
    return inner + tuple(p for p in outer if (p.file, p.function) not in known)


def _fix(analysis: Analysis, found: OptimizerSteps) -> Fix:
    if _own(analysis, found):
        return ON_LISTS
    return Fix(
        summary="Let the optimizer update all tensors in a few kernels.",
        snippet=f"torch.optim.{found.names[0] if found.names else 'AdamW'}(..., fused=True)",
        reference="https://docs.pytorch.org/docs/stable/optim.html",
    )


def _changes(
    analysis: Analysis, options: Thresholds, found: OptimizerSteps
) -> tuple[Change, Change, Change]:
    """The step with the optimizer fused, at worst, likely and at best."""
    time = found.time
    if analysis.device is None:
        low, mid, high = (Change(host_cut=time, host_cut_factor=f) for f in options.cpu_saving)
        return low, mid, high
    tensors, total = _tensors(analysis, found), max(measure(time), 1)
    first, drop, traffic_ns = _kernels(analysis, found)
    left = [tensors * each * found.rows.size / total for each in options.host_left_ns]
    inflation = options.own_inflation if _own(analysis, found) else options.inflation
    cut = [max(1 - a, 0.0) * b for a, b in zip(left, inflation, strict=True)]
    changes = [
        Change(
            host_cut=time,
            host_cut_factor=part,
            drop_calls=drop,
            durations=(first, np.maximum(traffic_ns * passes, 3_000).astype(np.int64)),
        )
        for part, passes in zip(cut, options.passes_left, strict=True)
    ]
    return changes[0], changes[1], changes[2]


def _kernels(analysis: Analysis, found: OptimizerSteps) -> tuple[IntArray, IntArray, IntArray]:
    """The kernel that stays in each step, the calls that go, and the time of a step's traffic."""
    work, mine = optimizer_kernels(analysis)
    ts, dur = analysis.trace.column("ts_ns"), analysis.trace.column("dur_ns")
    start = ts[found.rows]
    step = np.searchsorted(start, ts[work.call[mine]], side="right") - 1
    inside = (step >= 0) & (ts[work.call[mine]] < (start + dur[found.rows])[np.maximum(step, 0)])
    mine, step = mine[inside], step[inside]
    if mine.size == 0:
        return mine, mine, mine
    _, first = np.unique(step, return_index=True)
    keep = mine[first]
    total = np.bincount(step, weights=_traffic_ns(analysis, work.rows[mine]))[step[first]]
    drop = np.setdiff1d(work.call[mine], work.call[keep])
    return work.rows[keep], drop, total.astype(np.int64)


def _traffic_ns(analysis: Analysis, rows: IntArray) -> npt.NDArray[np.float64]:
    """Time of each event's traffic at the device's bandwidth; half its duration when unknown."""
    ns = analysis.trace.column("dur_ns")[rows].astype(np.float64)
    peaks = analysis.peaks
    costs = analysis.get(kernel_costs)
    if peaks is None or not analysis.has("shapes") or not costs.rows.size:
        return np.asarray(ns / 2)
    at = np.minimum(np.searchsorted(costs.rows, rows), max(costs.rows.size - 1, 0))
    known = (costs.rows[at] == rows) & (costs.bytes[at] >= 0)
    traffic = costs.bytes[at] / peaks.achievable_bytes_per_ns
    return np.asarray(np.where(known, np.minimum(traffic, ns), ns / 2))


def _loop(t: TraceBuilder, tensors: int) -> None:
    step_us = 200 + tensors * 80
    for step in range(4):
        at = step * step_us
        t.step(at, step_us)
        t.op("aten::mm", at + 5, 20, dims=[[256, 256], [256, 256]])
        t.kernel("sm90_gemm", at + 20, 90, launch_at=at + 10)
        t.annotation("Optimizer.step#Adam.step", at + 100, tensors * 80)
        for i in range(tensors):
            for k, name in enumerate(("lerp_", "mul_", "addcmul_", "sqrt", "addcdiv_")):
                begin = at + 101 + 80 * i + 15 * k
                t.op(f"aten::{name}", begin, 12, dims=[[256, 256], []])
                t.kernel("vectorized_elementwise_kernel", begin + 10, 2, launch_at=begin + 3)


def _fused(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 1_000
        t.step(at, 1_000)
        t.op("aten::mm", at + 5, 20, dims=[[256, 256], [256, 256]])
        t.kernel("sm90_gemm", at + 20, 900, launch_at=at + 10)
        t.annotation("Optimizer.step#Adam.step", at + 100, 200)
        t.op("aten::_fused_adam_", at + 110, 80)
        t.kernel("multi_tensor_apply_kernel", at + 930, 40, launch_at=at + 120)


def _one_each(t: TraceBuilder) -> None:
    """Forty optimizers of one tensor, 100 µs each, beside 1 ms of other work."""
    for step in range(4):
        at = step * 5_000
        t.step(at, 5_000)
        t.op("aten::mm", at + 5, 20, dims=[[256, 256], [256, 256]])
        t.kernel("sm90_gemm", at + 30, 900, launch_at=at + 10)
        for i in range(40):
            begin = at + 1_000 + 100 * i
            t.annotation("Optimizer.step#AdamW.step", begin, 99)
            for k, name in enumerate(("_foreach_lerp_", "_foreach_mul_", "_foreach_addcdiv_")):
                t.op(f"aten::{name}", begin + 5 + 30 * k, 20)
                launch_at = begin + 10 + 30 * k
                t.kernel("multi_tensor_apply_kernel", launch_at + 8, 2, launch_at=launch_at)


def _average(t: TraceBuilder, sizes: tuple[int, ...]) -> None:
    """A loop over 40 tensors, 50 µs each, beside 1 ms of other work."""
    for step in range(4):
        at = step * 3_000
        t.step(at, 3_000)
        t.python("train.py(30): follow", at + 995, 2_004)
        t.op("aten::mm", at + 5, 20, dims=[[256, 256], [256, 256]])
        t.kernel("sm90_gemm", at + 30, 900, launch_at=at + 10)
        for i in range(40):
            size = sizes[i % len(sizes)]
            for k, name in enumerate(("mul_", "add_")):
                begin = at + 1_000 + 50 * i + 25 * k
                t.op(f"aten::{name}", begin, 20, dims=[[size, size], []])
                t.kernel("vectorized_elementwise_kernel", begin + 15, 2, launch_at=begin + 5)


def _average_of_weights(t: TraceBuilder) -> None:
    _average(t, (256, 64, 16))


def _recurrence(t: TraceBuilder) -> None:
    _average(t, (256,))


def _many(t: TraceBuilder) -> None:
    _loop(t, 40)


RULE = Rule(
    code="FW507",
    name="single-tensor-optimizer",
    class_="framework",
    summary="The optimizer updates one tensor at a time instead of all of them together.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops"}),
    evidence="TE",
    remedies=("optimizer-implementation",),
    references=(
        "https://docs.pytorch.org/docs/stable/optim.html",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    ),
    examples=(
        Example("five operators for each of 40 tensors", _many, fires=True),
        Example("an optimizer for each of 40 tensors", _one_each, fires=True),
        Example(
            "an average of 40 tensors of three shapes, one by one", _average_of_weights, fires=True
        ),
        Example("a fused Adam", _fused, fires=False),
        Example("the same loop over states of one shape", _recurrence, fires=False),
    ),
)
