"""The backward pass computes gradients of parameters that no optimizer updates.

## What it finds
Gradients that are added to in every step, while those of other parameters are set anew in each:
nobody clears them, so no optimizer has them. Or, where several networks are trained in turns,
gradients that are cleared before an optimizer has used them: the loss of one network is
differentiated through the other one. Counted is the end of the backward pass, after the last
gradient that is used: it leads to unused ones only.

## Why it matters
A backward pass costs about twice its forward pass. A new head on a backbone that is not trained
needs none of it below the head: neither the gradients nor the results that are kept for them. That
the optimizer does not have a parameter switches nothing off; autograd asks for `requires_grad`.

## How to fix it
Run the part that is not trained under `torch.no_grad()`, or switch its parameters off:
`backbone.requires_grad_(False)`. If they were meant to be trained, give them to the optimizer:
until now they were not. What one network made for the other's step is passed on detached:
`critic(fake.detach())`.

## Limits
Parameters are told apart by their shapes: those of a shape that is used as well count as used.
Of unused gradients between used ones (adapters inside of a model) only the products of linear
layers and the additions count. The gradients of a critic in its generator's step are between used
ones, too: `critic.requires_grad_(False)` for that step spares them, and is not counted.
A program that adds up gradients over more steps than were recorded, for a part of its parameters,
looks the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.cost import kernel_costs
from kinetoscope.metrics.device_ops import device_ops
from kinetoscope.metrics.discarded import discarded_gradients
from kinetoscope.metrics.gradients import UnusedGradients, unused_gradients
from kinetoscope.metrics.intervals import clip, measure, merge, points_in, union
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Location
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import apart, extent_of, per_step_ns, places
from kinetoscope.trace.frames import is_engine_call
from kinetoscope.trace.kinds import RUNTIME_KINDS
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_URL = (
    "https://docs.pytorch.org/docs/stable/notes/autograd.html"
    "#locally-disabling-gradient-computation"
)


class Thresholds(Options, frozen=True):
    """What goes away with the backward pass."""

    recording: tuple[float, float, float] = (0.0, 0.08, 0.15)
    """Part of the host time of their forward operators that goes away with the autograd nodes, as
    in inference without gradients (IN601); nothing at worst."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Replay without the end of the backward pass that leads to unused gradients only."""
    grown = analysis.get(unused_gradients)
    found = grown or analysis.get(discarded_gradients)
    if found is None:
        return
    tree = analysis.trace.tree
    added = union(tree.start[found.nodes], tree.end[found.nodes])
    vain = merge(found.tails, added, analysis.extent(_products(analysis, found)))
    calls = analysis.rows(*RUNTIME_KINDS)
    mine = np.isin(analysis.trace.column("thread")[calls], tree.thread[found.nodes])
    calls = calls[mine & points_in(vain, analysis.trace.column("ts_ns")[calls])]
    work = analysis.get(device_ops)
    rows = work.rows[np.isin(work.call, calls)]
    forward = analysis.extent(_forward_of(analysis, found))
    low, high = analysis.times.host_window
    host_ns = measure(clip(vain, low, high)) // analysis.steps_on_host
    device_ns = per_step_ns(analysis, rows)
    gradients = found.nodes.size / found.steps
    yield Hit(
        message=(
            f"The backward pass computes {count(round(gradients))} gradients a step that no "
            f"optimizer uses: they {_fate(grown)}. That takes {_taken(host_ns, device_ns)}."
        ),
        evidence=(
            Evidence("unused_gradients", round(gradients, 1), "count"),
            Evidence("host_time", host_ns, "ns"),
            Evidence("device_time", device_ns, "ns"),
        ),
        locations=_places(analysis, rows)
        if rows.size
        else analysis.locations(_forward_of(analysis, found)),
        fix=_fix(measure(found.tails) > 0) if grown else _DETACHED,
        gain=analysis.gain(
            *(
                Change(host_cut=vain, drop_calls=calls, more_cuts=((forward, part),))
                for part in options.recording
            )
        ),
        confidence=0.9,
        claims=extent_of(analysis, rows) if rows.size else vain,
    )


_MIXED = 0.2
"""The backward pass of a part begins before its first gradient that is known to be unused."""


def _places(analysis: Analysis, rows: IntArray) -> tuple[Location, ...]:
    """Where the forward of these gradients is called, and nothing else; then the layers."""
    work = analysis.get(device_ops)
    used = work.rows[work.backward & ~np.isin(work.rows, rows)]
    inside = analysis.in_window(rows)
    called = apart(analysis, inside, analysis.in_window(used), mixed=_MIXED)
    seen = {(place.file, place.line) for place in called}
    others = places(analysis, rows, whole_step=True)
    return called + tuple(p for p in others if (p.file, p.line) not in seen)


def _fate(grown: UnusedGradients | None) -> str:
    return "grow from step to step" if grown else "are cleared before its next step"


_DETACHED = Fix(
    summary="Detach what the other network made, or make it under torch.no_grad().",
    snippet="loss = loss_of(critic(real), critic(fake.detach()))",
    reference=_URL,
)


def _fix(below: bool) -> Fix:
    """`below`: does a part of the backward pass lead to unused gradients only?"""
    if below:
        return Fix(
            summary="Run the part that is not trained under torch.no_grad(), or switch its "
            "parameters off.",
            snippet="backbone.requires_grad_(False)  # or:\nwith torch.no_grad():\n"
            "    features = backbone(x)",
            reference=_URL,
        )
    return Fix(
        summary="Switch the parameters off that are not trained.",
        snippet="model.requires_grad_(False)\nfor p in trained: p.requires_grad_(True)",
        reference=_URL,
    )


def _products(analysis: Analysis, found: UnusedGradients) -> IntArray:
    """Rows of the operators in the backward pass that compute such gradients of linear layers.

    They are the products whose result has the shape of such a gradient, or of its transpose.
    """
    work, costs = analysis.get(device_ops), analysis.get(kernel_costs)
    shapes = np.array([shape for shape in found.shapes if len(shape) == 2], dtype=np.int64)
    if not shapes.size or not costs.rows.size:
        return np.empty(0, dtype=np.int64)
    sizes = np.concatenate((shapes, shapes[:, ::-1]))
    fits = ((costs.m[:, None] == sizes[:, 0]) & (costs.n[:, None] == sizes[:, 1])).any(axis=1)
    mine = work.backward & np.isin(work.rows, costs.rows[fits & (costs.batch <= 1)])
    return np.unique(work.op[mine & (work.op >= 0)])


def _taken(host_ns: int, device_ns: int) -> str:
    if device_ns:
        return f"{duration(device_ns)} of the device and {duration(host_ns)} of the host"
    return duration(host_ns)


def _forward_of(analysis: Analysis, found: UnusedGradients) -> IntArray:
    """Rows of the forward operators whose backward leads to unused gradients only."""
    trace = analysis.trace
    names = trace.column("name_id")[trace.tree.rows]
    engine = trace.name_flags(is_engine_call)[names]
    nodes = np.flatnonzero(engine & points_in(found.tails, trace.tree.start))
    forward = trace.links.forward[nodes]
    return trace.tree.rows[np.unique(forward[forward >= 0])]


def _training(t: TraceBuilder, *, kept: bool) -> None:
    """Steps of 3 ms: a head's backward and optimizer, and that of a backbone below it."""
    for step in range(4):
        at, seq = step * 3_000, 100 * step
        t.step(at, 3_000)
        t.python("train.py(10): train", at + 5, 2_900)
        for i, name in enumerate(("aten::linear", "aten::addmm")):
            t.op(name, at + 10 + 60 * i, 50, seq=seq + i, dims=[[64, 512], [512, 512]])
            t.kernel("gemm", at + 30 + 400 * i, 350, launch_at=at + 20 + 60 * i)
        for i, shape in enumerate(([10, 512], [512, 512])):
            begin = at + 1_000 + 600 * i
            _backward(t, begin, shape, seq + 1 - i, adds=kept and i == 1)
        t.annotation("Optimizer.step#SGD.step", at + 2_400, 60)
        t.op("aten::_foreach_add_", at + 2_405, 50, dims=[[[10, 512]]], types=["TensorList"])
        t.kernel("multi_tensor_apply_kernel", at + 2_440, 20, launch_at=at + 2_420)
        t.sync(at + 2_470, 100)


def _backward(t: TraceBuilder, begin: int, shape: list[int], seq: int, *, adds: bool) -> None:
    engine = "autograd::engine::evaluate_function: "
    t.op(f"{engine}AddmmBackward0", begin, 300, seq=seq)
    t.kernel("gemm", begin + 30, 500, launch_at=begin + 20)
    t.op(f"{engine}torch::autograd::AccumulateGrad", begin + 310, 60)
    t.op("torch::autograd::AccumulateGrad", begin + 312, 50, dims=[shape])
    t.op("aten::add_" if adds else "aten::detach", begin + 315, 40, dims=[shape])
    if adds:
        t.kernel("vectorized_elementwise_kernel", begin + 535, 20, launch_at=begin + 320)


def _frozen(t: TraceBuilder) -> None:
    _training(t, kept=True)


def _trained(t: TraceBuilder) -> None:
    _training(t, kept=False)


RULE = Rule(
    code="CP228",
    name="gradients-nobody-uses",
    class_="compute",
    summary="The backward pass computes gradients of parameters that no optimizer updates.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops", "shapes", "steps"}),
    evidence="T",
    references=(_URL,),
    examples=(
        Example(
            "a gradient that grows from step to step below a trained head", _frozen, fires=True
        ),
        Example("two gradients that are set anew in each step", _trained, fires=False),
    ),
)
