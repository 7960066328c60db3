"""The gradient scaler reads from the device whether a gradient overflowed, and the host waits.

## What it finds
Reads of a value inside `GradScaler.step`, or right after the operator that looks for infinities.

## Why it matters
The scaler has to know whether to skip the optimizer's step. It asks the device, so the host waits
for the whole backward pass in each step and cannot prepare the next one meanwhile.

## How to fix it
bfloat16 needs no scaler: `torch.autocast("cuda", torch.bfloat16)` and a plain `optimizer.step()`.
With float16, an optimizer with `fused=True` skips the step on the device and nothing is read.

## Limits
Devices without bfloat16 (V100, T4) need float16. Where the device limits the step, the wait hides
and nothing is gained.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.waits import Wait, Waits
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._surroundings import within
from kinetoscope.rules.framework._waiting import avoidable, blocked_per_step
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.torch_frames import is_scaler_check, is_scaler_frame
from kinetoscope.units import duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When the read is the scaler's."""

    most_distance_ns: int = 1_000_000
    """Without stacks: host time between the check for infinities and the read."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find the scaler's reads, and replay the steps without waiting for them."""
    waits = _scaler_waits(analysis, avoidable(analysis, Wait.SCALAR), options)
    if waits.call.size == 0:
        return
    ops = np.unique(waits.op)
    reading, blocked = analysis.extent(ops), blocked_per_step(analysis, waits)
    yield Hit(
        message=(
            f"GradScaler reads {ops.size / analysis.steps_on_host:,.0f} values a step from the "
            f"device to decide about the optimizer's step; the host waits {duration(blocked)}."
        ),
        evidence=(
            Evidence("reads_per_step", round(ops.size / analysis.steps_on_host, 1), "count"),
            Evidence("blocked_time", blocked, "ns"),
        ),
        locations=analysis.locations(ops, calls=("step", "update", "unscale_")),
        fix=Fix(
            summary="Train in bfloat16 without a scaler, or use a fused optimizer, which decides "
            "on the device.",
            snippet='with torch.autocast("cuda", torch.bfloat16):\n    loss = model(x)\n'
            "loss.backward()\noptimizer.step()",
            reference="https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",
        ),
        gain=analysis.gain(
            Change(unblock=waits.calls),
            Change(unblock=waits.calls, drop_calls=waits.calls, host_cut=reading),
        ),
        confidence=0.9,
        claims=reading,
        at_most="medium",
    )


def _scaler_waits(analysis: Analysis, waits: Waits, options: Thresholds) -> Waits:
    """Reads inside the scaler's frames; without frames the first one after each check."""
    trace, tree = analysis.trace, analysis.trace.tree
    if waits.call.size == 0:
        return waits
    inside = within(trace, trace.tree.named(is_scaler_frame))
    if inside.any() or analysis.has("stacks"):
        return waits.where(inside[tree.node_of[waits.call]])
    checks = analysis.matching(is_scaler_check)
    checks = checks[trace.column("kind")[checks] == Kind.CPU_OP]
    if checks.size == 0:
        return waits.where(np.zeros(waits.call.size, dtype=bool))
    ts, end = trace.column("ts_ns"), (trace.column("ts_ns") + trace.column("dur_ns"))[checks]
    read = ts[waits.op]
    at = np.searchsorted(end, read, side="right") - 1
    near = (at >= 0) & (read - end[np.maximum(at, 0)] < options.most_distance_ns)
    first = np.append(True, at[1:] != at[:-1])
    return waits.where(near & first)


def _steps(t: TraceBuilder, *, reads: bool) -> None:
    for step in range(4):
        at = step * 3_000.0
        t.step(at, 3_000)
        t.kernel("gemm", at + 30, 1_400, launch_at=at + 10)
        t.python("torch/amp/grad_scaler.py(400): step", at + 100, 1_400)
        t.op("aten::_amp_foreach_non_finite_check_and_unscale_", at + 110, 20)
        t.kernel("multi_tensor_apply", at + 1_431, 10, launch_at=at + 115)
        if reads:
            t.op("aten::item", at + 140, 1_320)
            t.op("aten::_local_scalar_dense", at + 141, 1_318)
            t.copy("DtoH Pinned", 4, at + 1_442, 2, launch_at=at + 145)
            t.sync(at + 150, 1_300)
        t.kernel("adam", at + 1_600, 1_380, launch_at=at + (1_550 if reads else 150))


def _reads(t: TraceBuilder) -> None:
    _steps(t, reads=True)


def _on_the_device(t: TraceBuilder) -> None:
    _steps(t, reads=False)


RULE = Rule(
    code="FW527",
    name="gradscaler-sync",
    class_="framework",
    summary="GradScaler reads a value from the device before each optimizer step.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "ops"}),
    evidence="S",
    references=("https://docs.pytorch.org/docs/stable/amp.html",),
    examples=(
        Example("a scaler that waits for the backward pass", _reads, fires=True),
        Example("a fused optimizer that decides on the device", _on_the_device, fires=False),
    ),
)
