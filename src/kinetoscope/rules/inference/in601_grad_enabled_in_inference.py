"""Inference runs with gradients enabled.

## What it finds
No backward pass and no optimizer in several steps, yet the operators of the forward pass make
nodes for one: their autograd sequence numbers grow from step to step.

## Why it matters
Every intermediate result is kept until the output is released, as a backward pass might need it:
the memory of training, for inference. Making the nodes also costs the host some time in each
operator, which matters when the host sets the pace.

## How to fix it
`with torch.inference_mode():` around the call, or `@torch.inference_mode()` on the function that
serves requests. `torch.no_grad()` where results are used in autograd later.

## Limits
There is next to nothing to gain in time while the device is busy; the reason is memory. Torch's
own transformer layers are the exception: their fused forward needs `eval()` and no gradients. A
recording of nothing but the forward part of training looks the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import device_ops
from kinetoscope.metrics.intervals import Coverage, Intervals, measure
from kinetoscope.metrics.phase import trains
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import with_step
from kinetoscope.trace.frames import has_fast_path, is_fast_path
from kinetoscope.trace.kinds import Family, Kind
from kinetoscope.trace.trace import IntArray

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_URL = "https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad_mode.inference_mode.html"


class Thresholds(Options, frozen=True):
    """When gradients are called enabled."""

    min_steps: int = 3
    """Steps without a backward pass; fewer may be a part of one training step. A recording
    without any marks of steps is taken for that of a server."""
    min_nodes: int = 3
    """Autograd nodes a step."""
    cautious: float = 0.03
    """Part of the host time of these operators that goes away at the cautious end."""
    likely: float = 0.08
    """Part at the likely one; practitioners report 8 % for launch-bound models."""
    best: float = 0.15
    """Part at the best end."""
    fast_path: tuple[float, float] = (0.5, 0.8)
    """Part of the host time and of the pointwise kernels of `nn.TransformerEncoderLayer` and
    `nn.MultiheadAttention` that goes away, likely and at best: in `eval()` and without gradients
    one fused operator replaces the layer (their documentation, "fast path")."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Count the sequence numbers that the forward operators used up."""
    steps = analysis.trace.steps
    if analysis.get(trains) or (steps.count < options.min_steps and steps.source != "whole_trace"):
        return
    rows, nodes = _nodes(analysis)
    if nodes < options.min_nodes:
        return
    recording = analysis.extent(rows)
    yield Hit(
        message=(
            f"The forward pass makes {nodes:,.0f} autograd nodes a step, and no backward pass "
            "uses them: its intermediate results stay in memory until the output is released."
        ),
        evidence=(
            Evidence("autograd_nodes_per_step", round(nodes, 1), "count"),
            Evidence("steps_without_backward", steps.count, "count"),
        ),
        locations=with_step(analysis, analysis.locations(rows, top=2), rows),
        fix=Fix(
            summary="Run inference in `torch.inference_mode()`.",
            snippet="with torch.inference_mode():\n    output = model(batch)",
            reference=_URL,
        ),
        gain=analysis.gain(*_changes(analysis, recording, options)),
        confidence=0.9 if steps.count >= options.min_steps else 0.7,
        at_least="medium",
        keep=True,
    )


def _changes(
    analysis: Analysis, recording: Intervals, options: Thresholds
) -> tuple[Change, Change, Change]:
    """What goes away without gradients; with it, likely, the slow path of torch's own layers."""
    slow = analysis.extent(analysis.in_steps(analysis.matching(has_fast_path)))
    low = Change(host_cut=recording, host_cut_factor=options.cautious)
    trained = analysis.named("aten::native_dropout").size > 0
    # On a processor the time is arithmetic, which the fused operator does as well: three encoder
    # layers became 1.1 times as fast.
    host = analysis.device is None
    if trained or host or not measure(slow) or analysis.matching(is_fast_path).size:
        return (
            low,
            replace(low, host_cut_factor=options.likely),
            replace(low, host_cut_factor=options.best),
        )
    work = analysis.get(device_ops)
    at = analysis.trace.column("ts_ns")[np.maximum(work.call, 0)]
    inside = (work.call >= 0) & (Coverage(slow).between(at, at + 1) > 0)
    inside &= work.of_family(Family.ELEMENTWISE, Family.COPY)
    rows, ns = work.rows[inside], work.ns[inside]
    return (
        low,
        Change(
            host_cut=slow,
            host_cut_factor=options.fast_path[0],
            durations=(rows, (ns * (1 - options.fast_path[0])).astype(np.int64)),
        ),
        Change(
            host_cut=slow,
            host_cut_factor=options.fast_path[1],
            durations=(rows, (ns * (1 - options.fast_path[1])).astype(np.int64)),
        ),
    )


def _nodes(analysis: Analysis) -> tuple[IntArray, float]:
    """Operators that made an autograd node, and how many nodes a step has.

    An operator carries the number that the next node will get; it made a node when a later
    operator carries a higher one.
    """
    trace = analysis.trace
    ops = np.flatnonzero((trace.column("kind") == Kind.CPU_OP) & (trace.column("seq") >= 0))
    ops = analysis.in_steps(ops)
    if ops.size == 0:
        return ops, 0.0
    seq = trace.column("seq")[ops].astype(np.int64)
    numbers, first = np.unique(seq, return_index=True)
    return ops[np.sort(first)], (numbers.size - 1) / analysis.steps_on_host


def _forward_with_nodes(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 1_000.0
        t.step(at, 1_000)
        t.python("serve.py(10): answer", at + 5, 990)
        for i in range(10):
            t.op("aten::linear", at + 10 + i * 90, 80, seq=step * 10 + i)
            t.kernel("gemm", at + 40 + i * 90, 60, launch_at=at + 30 + i * 90)


def _without(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 1_000.0
        t.step(at, 1_000)
        for i in range(10):
            t.op("aten::linear", at + 10 + i * 90, 80)
            t.kernel("gemm", at + 40 + i * 90, 60, launch_at=at + 30 + i * 90)


RULE = Rule(
    code="IN601",
    name="grad-enabled-in-inference",
    class_="memory",
    summary="Inference runs with gradients enabled and keeps all intermediate results.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops"}),
    evidence="ET",
    remedies=("inference-mode",),
    references=(_URL,),
    examples=(
        Example("ten autograd nodes a step and no backward", _forward_with_nodes, fires=True),
        Example("the same operators in inference mode", _without, fires=False),
    ),
)
