"""The loss over a large vocabulary passes over its logits again and again.

## What it finds
A log-softmax over 32,000 or more classes whose pointwise kernels (cast to float32, log-softmax,
gradient, cast back) take a sizeable part of the busy time.

## Why it matters
The logits have one element for each token and class: 8,192 tokens and 50,000 classes are 1.6 GB in
float32. Each operator of the loss reads and writes all of them, and several copies of them set the
peak of memory.

## How to fix it
A fused linear-and-cross-entropy (Liger kernels, cut cross-entropy) never writes the logits.
`torch.compile` of the loss fuses the passes. A loop over chunks of tokens bounds the memory. Leave
the logits in bfloat16: `F.cross_entropy` accumulates in float32 by itself. A loss that is written
out (targets laid out for all classes, a product, a sum) makes passes of its own: the library's
takes `label_smoothing=` and targets as probabilities.

## Limits
The product that makes the logits stays; it is usually the larger part. For a loss that is written
out the likely gain is that of the library's, at best that of a fused one.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import DeviceOps, Flags, args_of, largest_tensor
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import (
    busy_share,
    device_work,
    extent_of,
    per_step_ns,
    places,
)
from kinetoscope.trace.kinds import Family
from kinetoscope.trace.trace import IntArray, Trace
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_LOSS = ("_log_softmax", "_log_softmax_backward_data")
_PRODUCTS = (Family.GEMM, Family.CONV, Family.ATTENTION)


class Thresholds(Options, frozen=True):
    """When a loss is worth a word."""

    min_classes: int = 32_000
    """Classes; the smallest vocabulary of current language models."""
    min_elements: int = 1 << 24
    """Elements of the logits; smaller ones cost little."""
    min_share: float = 0.05
    """Share of the busy time in the passes over the logits."""
    left: tuple[float, float, float] = (0.7, 0.45, 0.25)
    """Part of that time that a fused loss still takes: two passes instead of four to eight."""
    min_own: float = 0.1
    """Share of that time in passes that the library's loss does not make, from which on the loss
    is written out."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find the passes over the logits and replay them fused."""
    work = device_work(analysis)
    loss = np.flatnonzero(work.named(*_LOSS))
    shapes = _logits(analysis.trace, work, loss, options)
    if not shapes:
        return
    index = _passes(analysis.trace, work, shapes)
    rows = work.rows[index]
    share = busy_share(analysis, rows)
    if share < options.min_share:
        return
    tokens, classes = max(shapes)
    own = float(work.ns[index][_own(work, index)].sum() / max(work.ns[index].sum(), 1))
    own = own if own >= options.min_own else 0.0
    spent = per_step_ns(analysis, rows)
    yield Hit(
        message=(
            f"The loss passes over logits of {count(tokens)} x {count(classes)} in "
            f"{rows.size // max(analysis.trace.steps.count, 1)} kernels a step: {duration(spent)}, "
            f"{percent(share)} of the device's busy time."
        ),
        evidence=(
            Evidence("loss_time", spent, "ns"),
            Evidence("busy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("classes", classes, "count"),
        ),
        locations=places(analysis, work.rows[loss], calls=("cross_entropy", "log_softmax")),
        fix=_WRITTEN_OUT if own else _LIBRARY,
        gain=analysis.gain(
            *(
                Change(durations=(rows, (work.ns[index] * part).astype(np.int64)))
                for part in _left(own, options)
            )
        ),
        confidence=0.7,
        claims=extent_of(analysis, rows),
        at_most="medium",
    )


_LIBRARY = Fix(
    summary="Fuse the loss with the output layer, or compile it.",
    snippet="loss_fn = torch.compile(F.cross_entropy)",
    reference="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
)
_WRITTEN_OUT = Fix(
    summary="Use the library's loss instead of one written out over all classes, or compile it.",
    snippet="loss = F.cross_entropy(logits, targets, label_smoothing=0.1)",
    reference="https://docs.pytorch.org/docs/stable/generated/"
    "torch.nn.functional.cross_entropy.html",
)
_OF_THE_LIBRARY = frozenset({*_LOSS, "copy_", "_to_copy", "fill_", "zero_"})
"""Operators of `F.cross_entropy` over all classes: the loss, casts around it, and the gradient that
is laid out with zeros. `nll_loss` touches one class of each token."""


def _own(work: DeviceOps, index: IntArray) -> Flags:
    """Which of the passes the library's loss would not make."""
    return np.asarray(~work.by_op_name(_OF_THE_LIBRARY.__contains__)[index])


def _left(own: float, options: Thresholds) -> tuple[float, float, float]:
    """Part of the time that remains, at worst, likely, at best.

    At worst the library's loss needs half of a written-out one's own passes as well: smoothing
    takes a sum and adds a gradient.
    """
    if not own:
        return options.left
    return 1 - own / 2, 1 - own, min(options.left[2], 1 - own)


def _logits(
    trace: Trace, work: DeviceOps, loss: IntArray, options: Thresholds
) -> set[tuple[int, int]]:
    """(tokens, classes) of the large losses."""
    found = set()
    for group in work.groups(loss):
        shape = largest_tensor(args_of(trace, int(work.op[group[0]])))
        if shape and shape[-1] >= options.min_classes and prod(shape) >= options.min_elements:
            found.add((prod(shape[:-1]), shape[-1]))
    return found


def _passes(trace: Trace, work: DeviceOps, shapes: set[tuple[int, int]]) -> IntArray:
    """Positions of all kernels but products over tensors with as many elements and classes.

    A sum in the backward pass is the gradient of the bias, whatever the loss is.
    """
    elements = {tokens * classes for tokens, classes in shapes}
    classes = {c for _, c in shapes}
    candidate = np.flatnonzero((work.op >= 0) & ~work.of_family(*_PRODUCTS) & ~work.optimizer)
    candidate = candidate[~(work.backward & work.named("sum"))[candidate]]
    chosen = []
    for group in work.groups(candidate):
        shape = largest_tensor(args_of(trace, int(work.op[group[0]])))
        if (
            shape
            and shape[-1] in classes
            and any(0.98 <= prod(shape) / n <= 1.02 for n in elements)
        ):
            chosen.append(group)
    return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, dtype=np.int64)


def _loss(t: TraceBuilder, classes: int, pass_us: float) -> None:
    shape = [8192, classes]
    for step in range(4):
        at = step * 8_000
        t.step(at, 7_990)
        names = ("copy_", "_log_softmax", "_log_softmax_backward_data", "copy_")
        t.op("aten::mm", at + 5, 12, dims=[[8192, 1024], [1024, classes]])
        t.kernel("nvjet_sm90_tst", at + 100, 1_200, launch_at=at + 8)
        for i, name in enumerate(names):
            t.op(f"aten::{name}", at + 20 + 20 * i, 15, dims=[shape, shape])
            t.kernel(
                "elementwise_kernel", at + 1_300 + pass_us * i, pass_us, launch_at=at + 24 + 20 * i
            )
        t.sync(at + 110, 1_190 + 4 * pass_us)


def _large(t: TraceBuilder) -> None:
    _loss(t, 50_304, 900)


def _small(t: TraceBuilder) -> None:
    _loss(t, 1_000, 18)


RULE = Rule(
    code="CP220",
    name="large-vocab-loss",
    class_="compute",
    summary="The loss over a large vocabulary passes over its logits again and again.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "shapes"}),
    evidence="TS",
    references=(
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.cross_entropy.html",
    ),
    examples=(
        Example("four passes over logits of 50,304 classes", _large, fires=True),
        Example("a loss over 1,000 classes", _small, fires=False),
    ),
)
