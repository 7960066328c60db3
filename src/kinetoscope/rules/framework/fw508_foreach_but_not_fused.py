"""The optimizer works on lists of tensors, but operation by operation.

## What it finds
`_foreach_*` operators in the steps of an optimizer that also has a fused form (Adam, AdamW, SGD
with momentum, Adagrad), and no `_fused_*` operator.

## Why it matters
Each foreach operator reads and writes all parameters, gradients or moments once. Adam in foreach
form moves two to three times the bytes of the fused kernel, and launches a kernel per operation
and chunk. For large models the optimizer is bound by memory bandwidth.

## How to fix it
`fused=True` in the optimizer's constructor.

## Limits
Worth little when the optimizer is a small part of the step. With DTensor parameters (FSDP2) the
fused form needs a recent PyTorch; with a gradient scaler it changes where the scale is applied.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._optimizer import one_for_each, optimizer_kernels, optimizer_steps
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_FUSABLE = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})


class Thresholds(Options, frozen=True):
    """When an unfused optimizer is worth a word."""

    min_operations: int = 3
    """Foreach operators in a step; plain SGD has one and nothing to fuse."""
    min_share: float = 0.03
    """Share of the step, on the device or on the host, spent in the optimizer."""
    device_left: tuple[float, float, float] = (0.75, 0.5, 0.35)
    """Device time of the fused kernel over that of the foreach kernels: Adam moves 7 of 17
    passes; 164 microseconds against 400 were seen for one model on an H200."""
    host_saved: tuple[float, float, float] = (0.2, 0.45, 0.6)
    """Part of the optimizer's host time that goes with the operators."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Measure the foreach steps and replay them fused."""
    found = analysis.get(optimizer_steps)
    steps = max(found.rows.size, 1)
    names = [name for name in found.names if name in _FUSABLE]
    if not names or found.fused.size or found.foreach.size < options.min_operations * steps:
        return
    if one_for_each(analysis.trace, found):  # FW507's
        return
    work, mine = optimizer_kernels(analysis)
    time = found.time
    per_step = max(analysis.trace.steps.count, 1)
    on_device, on_host = int(work.ns[mine].sum()) // per_step, measure(time) // per_step
    share = max(on_device, on_host) / max(analysis.step_ns, 1)
    if share < options.min_share:
        return
    rows, ns = work.rows[mine], work.ns[mine]
    changes = (
        Change(
            host_cut=time,
            host_cut_factor=saved,
            durations=(rows, np.maximum(ns * left, np.minimum(ns, 1_000)).astype(np.int64)),
        )
        for left, saved in zip(options.device_left, options.host_saved, strict=True)
    )
    yield Hit(
        message=(
            f"{names[0]} runs {found.foreach.size // steps} operations over all tensors one after "
            f"the other: {duration(on_device)} of device time a step "
            f"({percent(on_device / max(analysis.step_ns, 1))}), {duration(on_host)} on the host."
        ),
        evidence=(
            Evidence("device_time", on_device, "ns"),
            Evidence("host_time", on_host, "ns"),
            Evidence("foreach_operators", found.foreach.size // steps, "count"),
        ),
        locations=analysis.locations(found.rows, calls=("step",)),
        fix=Fix(
            summary="Fuse the optimizer's update.",
            snippet=f"torch.optim.{names[0]}(..., fused=True)",
            reference=f"https://docs.pytorch.org/docs/stable/generated/torch.optim.{names[0]}.html",
        ),
        gain=analysis.gain(*changes),
        confidence=0.7,
        claims=analysis.extent(analysis.in_window(rows)) if rows.size else time,
        at_most="medium",
    )


def _foreach(t: TraceBuilder, kernel_us: float, other_us: float) -> None:
    for step in range(4):
        at = step * (other_us + 8 * kernel_us + 20)
        t.step(at, other_us + 8 * kernel_us + 10)
        t.op("aten::mm", at + 5, 20, dims=[[256, 256], [256, 256]])
        t.kernel("sm90_gemm", at + 20, other_us, launch_at=at + 10)
        t.annotation("Optimizer.step#AdamW.step", at + 30, 200)
        for i in range(8):
            begin = at + 32 + 20 * i
            t.op("aten::_foreach_mul_", begin, 15)
            t.kernel(
                "multi_tensor_apply_kernel",
                at + 20 + other_us + i * kernel_us,
                kernel_us,
                launch_at=begin + 4,
            )
        t.sync(at + 240, other_us + 8 * kernel_us - 225)


def _large(t: TraceBuilder) -> None:
    _foreach(t, 200, 3_000)


def _small(t: TraceBuilder) -> None:
    _foreach(t, 4, 20_000)


RULE = Rule(
    code="FW508",
    name="foreach-but-not-fused",
    class_="framework",
    summary="The optimizer updates all tensors together, but one operation after the other.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops", "device"}),
    evidence="TS",
    remedies=("optimizer-implementation",),
    references=("https://docs.pytorch.org/docs/stable/optim.html",),
    examples=(
        Example("eight passes over large parameters", _large, fires=True),
        Example("an optimizer of 0.2 % of the step", _small, fires=False),
    ),
)
