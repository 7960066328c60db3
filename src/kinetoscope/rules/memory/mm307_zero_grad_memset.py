"""Gradients are filled with zeros in place of being dropped.

## What it finds
`zero_grad` that fills every gradient with zeros: operators `zero_` or `_foreach_zero_` inside it.

## Why it matters
Each gradient is written with zeros, and then read and written again when the backward pass adds
to it. Without a gradient the backward pass hands its result over as it is. That is three passes
over memory the size of the model, and as many kernels as there are parameters.

## How to fix it
`optimizer.zero_grad(set_to_none=True)` (the default since torch 2.0), `model.zero_grad()`
likewise.

## Limits
Zeros are wanted where the gradients' memory must stay in place: a captured CUDA graph, flat
gradient buffers. With several backward passes to a step only the first one's addition goes away.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import DeviceOps, device_ops
from kinetoscope.metrics.intervals import measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules._inside import (
    Flags,
    extent_of_nodes,
    nearest_named,
    outermost_ops,
)
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.distributed_frames import is_gradient_hook
from kinetoscope.trace.frames import is_zero_grad
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent, several

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_ZEROS = frozenset({"zero_", "_foreach_zero_", "fill_"})
_ADDS = frozenset({"add_", "add"})
_OPERATORS = 0.9
"""Part of the operators' host time that goes; handing a gradient over costs a little too."""
_ZERO_GRAD = "https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html"


class Thresholds(Options, frozen=True):
    """When clearing gradients is worth a word."""

    min_share: float = 0.01
    """Host or device time of the zeroing as a share of the step."""
    certain: float = 0.8
    """Part of the zeroing that surely goes; dropping the gradients costs a little too."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find operators that write zeros inside zero_grad, and replay without them."""
    trace = analysis.trace
    inside = nearest_named(trace, is_zero_grad) >= 0
    if not inside.any():
        return
    zeros = outermost_ops(trace, inside & trace.tree.named(lambda n: short_name(n) in _ZEROS))
    steps = max(trace.steps.count, 1)
    if zeros.size == 0:
        return
    work = analysis.get(device_ops)
    mine = np.flatnonzero(_under(analysis, zeros, work.rows))
    host = extent_of_nodes(trace, zeros)
    on_host, on_device = measure(host) // steps, int(work.ns[mine].sum()) // steps
    share = max(on_host, on_device) / max(analysis.step_ns, 1)
    if share < options.min_share:
        return
    adds = _additions(analysis)
    yield Hit(
        message=(
            "`zero_grad` writes zeros into the gradients: "
            f"{several(zeros.size // steps, 'operator')} a step, {duration(on_host)} on the host "
            f"and {duration(on_device)} on the device ({percent(min(share, 1.0))} of the "
            "step); the backward pass then adds to them."
        ),
        evidence=(
            Evidence("operators_per_step", zeros.size // steps, "count"),
            Evidence("host_time", on_host, "ns"),
            Evidence("device_time", on_device, "ns"),
            Evidence("adding_on_host", measure(extent_of_nodes(trace, adds)) // steps, "ns"),
        ),
        locations=analysis.locations(trace.tree.rows[zeros], calls=("zero_grad",)),
        fix=Fix(
            summary="Drop the gradients in place of filling them with zeros.",
            snippet="optimizer.zero_grad(set_to_none=True)",
            reference=_ZERO_GRAD,
        ),
        gain=analysis.gain(
            Change(
                host_cut=host,
                host_cut_factor=options.certain,
                durations=(work.rows[mine], np.zeros(mine.size, dtype=np.int64)),
            ),
            _without(analysis, work, (zeros, mine), adds),
        ),
        confidence=0.9,
        claims=host,
        at_most="medium",
    )


def _without(
    analysis: Analysis, work: DeviceOps, cleared: tuple[IntArray, IntArray], adds: IntArray
) -> Change:
    """The step without the zeroing and without the first addition to each gradient.

    With k backward passes to a step, k - 1 of each parameter's additions stay.
    """
    zeros, mine = cleared
    trace = analysis.trace
    calls = work.call[mine]
    part = min(zeros.size / adds.size, 1.0) if adds.size else 0.0
    rows = work.rows[_under(analysis, adds, work.rows)]
    ns = trace.column("dur_ns")[rows]
    if part < 1.0:
        return Change(
            host_cut=extent_of_nodes(trace, zeros),
            drop_calls=calls[calls >= 0],
            durations=(rows, (ns * (1 - part)).astype(np.int64)),
        )
    calls = np.concatenate((calls, trace.links.launch[rows]))
    return Change(
        host_cut=extent_of_nodes(trace, np.concatenate((zeros, adds))),
        host_cut_factor=_OPERATORS,
        drop_calls=calls[calls >= 0],
    )


def _under(analysis: Analysis, nodes: IntArray, rows: IntArray) -> Flags:
    """Which device events were launched inside these call-tree nodes."""
    tree = analysis.trace.tree
    flag = np.zeros(tree.rows.size, dtype=bool)
    flag[nodes] = True
    around = nearest(flag, tree.parent)
    node = analysis.trace.links.node[rows]
    if around.size == 0:
        return np.zeros(rows.size, dtype=bool)
    return np.asarray((node >= 0) & (around[np.maximum(node, 0)] >= 0))


def _additions(analysis: Analysis) -> IntArray:
    """Nodes of the additions of a new gradient to the old one, in autograd's AccumulateGrad."""
    trace = analysis.trace
    inside = nearest_named(trace, is_gradient_hook) >= 0
    return outermost_ops(trace, inside & trace.tree.named(lambda n: short_name(n) in _ADDS))


def _zeroing(t: TraceBuilder, parameters: int) -> None:
    for step in range(4):
        at = step * 4_000
        t.step(at, 3_990)
        t.annotation("Optimizer.zero_grad#SGD.zero_grad", at + 5, 10 * parameters + 10)
        for i in range(parameters):
            begin = at + 10 + 10 * i
            t.op("aten::zero_", begin, 9, dims=[[256, 256]])
            t.kernel("FillFunctor", begin + 5, 2, launch_at=begin + 2)
        t.op("aten::mm", at + 2_100, 20, dims=[[256, 256], [256, 256]])
        t.kernel("gemm", at + 2_110, 1_800, launch_at=at + 2_104)
        t.sync(at + 2_125, 1_800)


def _many(t: TraceBuilder) -> None:
    _zeroing(t, 200)


def _few(t: TraceBuilder) -> None:
    _zeroing(t, 2)


RULE = Rule(
    code="MM307",
    name="zero-grad-memset",
    class_="memory",
    summary="Gradients are filled with zeros in place of being dropped.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops"}),
    evidence="E",
    references=(_ZERO_GRAD,),
    remedies=("zero-grad",),
    examples=(
        Example("200 gradients filled one by one", _many, fires=True),
        Example("two gradients", _few, fires=False),
    ),
)
