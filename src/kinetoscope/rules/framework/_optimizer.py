"""What the optimizer rules share: the steps of the optimizer and what runs inside them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import DeviceOps, device_ops
from kinetoscope.metrics.gradients import backward_passes
from kinetoscope.metrics.intervals import Intervals
from kinetoscope.metrics.updates import update_nodes, update_time
from kinetoscope.trace.frames import is_optimizer_step
from kinetoscope.trace.kinds import RUNTIME_KINDS, Family, Kind
from kinetoscope.trace.op_names import op_family, short_name
from kinetoscope.trace.trace import IntArray, Trace

_CHEAP = frozenset({Family.ELEMENTWISE, Family.COPY, Family.REDUCTION})


@dataclass(frozen=True)
class OptimizerSteps:
    """Calls of `Optimizer.step` and the operators inside them.

    Attributes:
        rows: event-table rows of the steps (annotations).
        time: when they update parameters, without the closures that they were given.
        names: class names of the optimizers, `AdamW`.
        updates: rows of the operators that update one tensor each: the outermost pointwise ones.
        foreach: rows of the `_foreach_*` operators.
        fused: rows of the `_fused_*` operators.
        calls: rows of the runtime calls inside.
    """

    rows: IntArray
    time: Intervals
    names: tuple[str, ...]
    updates: IntArray
    foreach: IntArray
    fused: IntArray
    calls: IntArray


def optimizer_steps(trace: Trace) -> OptimizerSteps:
    """All optimizer steps of a trace."""
    tree, names = trace.tree, trace.names
    name_id = trace.column("name_id")[tree.rows]
    around = update_nodes(trace)
    inside = around >= 0
    short = [short_name(n) for n in names]
    is_foreach = np.array([s.startswith("_foreach_") for s in short], dtype=bool)
    is_fused = np.array([s.startswith("_fused_") for s in short], dtype=bool)
    is_update = np.array([op_family(n) in _CHEAP for n in names], dtype=bool)
    op = inside & (tree.kind == Kind.CPU_OP)
    parent_op = np.where(tree.parent >= 0, tree.op[np.maximum(tree.parent, 0)], -1)
    outermost = op & ((parent_op < 0) | ~op[np.maximum(parent_op, 0)])
    marks = np.flatnonzero(tree.named(is_optimizer_step))
    marks = marks[_outer(around, tree.parent, marks)]
    calls = inside & np.isin(tree.kind, RUNTIME_KINDS)
    return OptimizerSteps(
        rows=tree.rows[marks],
        time=update_time(trace),
        names=tuple(sorted({_class_name(names[i]) for i in name_id[marks]})),
        updates=tree.rows[outermost & is_update[name_id]],
        foreach=tree.rows[op & is_foreach[name_id]],
        fused=tree.rows[op & is_fused[name_id]],
        calls=tree.rows[calls],
    )


_FEW = 12
"""More optimizers than the models of one program have, the two of a GAN, the five of a world model,
the eight of an ensemble; so many belong to single layers or parameters."""


def one_for_each(trace: Trace, found: OptimizerSteps) -> bool:
    """Has each layer or parameter an optimizer of its own?

    One that updates a model many times in a step, as reinforcement learning does with the batches
    of a rollout, has a backward pass before each update.
    """
    if found.rows.size < _FEW * max(trace.steps.count, 1):
        return False
    at = np.sort(trace.column("ts_ns")[found.rows])
    before = np.searchsorted(backward_passes(trace), at)
    return bool(at.size >= _FEW * np.unique(before).size)


def optimizer_kernels(analysis: Analysis) -> tuple[DeviceOps, IntArray]:
    """The device events, and the positions of those launched inside an optimizer's step."""
    work = analysis.get(device_ops)
    return work, np.flatnonzero(work.optimizer & (work.call >= 0))


def _outer(around: IntArray, parent: IntArray, marks: IntArray) -> npt.NDArray[np.bool_]:
    """Steps that are not inside the step of a wrapping optimizer."""
    above = parent[marks]
    return (above < 0) | (around[np.maximum(above, 0)] < 0)


def _class_name(mark: str) -> str:
    """`Optimizer.step#AdamW.step` -> `AdamW`."""
    return mark.removeprefix("Optimizer.step#").removesuffix(".step")
