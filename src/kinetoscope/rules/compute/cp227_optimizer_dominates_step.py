"""The optimizer takes a large part of the step.

## What it finds
Device work inside `Optimizer.step` (on a CPU-only recording the step itself) for 15 % or more of
the step's time.

## Why it matters
The update reads and writes parameters, gradients and moments once a step, however large the batch
is. When forward and backward are short, it dominates.

## How to fix it
If it is far from the memory's speed: `fused=True`, or fewer parameter groups. If it is not: a
larger batch or gradient accumulation, so that updates are rarer; moments in bfloat16 or 8 bits;
sharding (FSDP, ZeRO) across ranks. An optimizer with matrix work of its own (Shampoo, Muon):
precondition less often.

## Limits
An update at the speed of the memory has no gain of its own: how rare it may become is a matter of
training, not of the program. Nor has the update of a table by sparse gradients: it adds rows where
they belong, which no fused optimizer does. A single-tensor or foreach optimizer is reported by
FW507 and FW508.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import DeviceOps, device_ops
from kinetoscope.metrics.intervals import clip, measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Gain
from kinetoscope.result.finding import NO_GAIN
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import extent_of, heaviest_op, per_step_ns, shrunk
from kinetoscope.rules.framework._optimizer import OptimizerSteps, optimizer_steps
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_OPTIM = "https://docs.pytorch.org/docs/stable/optim.html"


_SPARSE = frozenset("index_add_ index_add sparse_mask index_put_ _index_put_impl_".split())
"""Operators of an update by a sparse gradient."""


class Thresholds(Options, frozen=True):
    """When the optimizer is worth a word."""

    min_share: float = 0.15
    """Share of the step (RULES, CP227)."""
    far: float = 0.6
    """Share of what good kernels reach below which a faster update is to be had."""
    reached: tuple[float, float, float] = (0.6, 0.8, 1.0)
    """Share of it that a fused update reaches."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Measure the optimizer and compare it with the memory's speed."""
    found = analysis.get(optimizer_steps)
    if found.rows.size == 0:
        return
    work = analysis.get(device_ops)
    mine = np.flatnonzero(work.optimizer & (work.call >= 0))
    mine = mine[analysis.trace.column("kind")[work.rows[mine]] != Kind.COLLECTIVE]
    rows = work.rows[mine]
    on_device = analysis.device is not None
    spent = per_step_ns(analysis, rows) if on_device else _host_ns(analysis, found)
    share = spent / max(analysis.step_ns, 1)
    if share < options.min_share:
        return
    efficiency, gain = _headroom(analysis, work, mine, options) if on_device else (-1.0, NO_GAIN)
    sparse = on_device and bool(work.by_op_name(_SPARSE.__contains__)[mine].any())
    name = " and ".join(found.names) or "The optimizer"
    most = heaviest_op(analysis, work, mine) if on_device else ""
    detail = f", most of it in `{most}`" if most else ""
    floor = f" It runs at {percent(min(efficiency, 1.0))} of the memory's speed."
    yield Hit(
        message=(
            f"{name} takes {duration(spent)} a step ({percent(min(share, 1.0))}){detail}."
            f"{floor if efficiency >= 0 else ''}"
        ),
        evidence=(
            Evidence("optimizer_time", spent, "ns"),
            Evidence("step_share", round(min(share, 1.0), 4), "ratio", "derived"),
            *(
                (Evidence("efficiency", round(min(efficiency, 1.0), 6), "ratio", "derived"),)
                if efficiency >= 0
                else ()
            ),
        ),
        locations=analysis.locations(found.rows, calls=("step",)),
        fix=_fix(sparse or efficiency >= options.far, found),
        gain=gain,
        confidence=0.7,
        claims=extent_of(analysis, rows) if on_device else found.time,
        at_most="info" if gain is NO_GAIN else "medium",
        keep=True,
    )


def _host_ns(analysis: Analysis, found: OptimizerSteps) -> int:
    inside = clip(found.time, *analysis.window)
    return measure(inside) // analysis.steps


def _headroom(
    analysis: Analysis, work: DeviceOps, mine: IntArray, options: Thresholds
) -> tuple[float, Gain]:
    """Achievable over taken time of the update (-1: unknown), and the gain of reaching it."""
    roof = analysis.roof
    rows, ns = work.rows[mine], work.ns[mine]
    if roof.peaks is None or roof.costs.rows.size == 0 or not rows.size:
        return -1.0, NO_GAIN
    at = np.minimum(np.searchsorted(roof.costs.rows, rows), roof.costs.rows.size - 1)
    known = (roof.costs.rows[at] == rows) & (roof.achievable_ns[at] >= 0)
    known &= ~work.by_op_name(_SPARSE.__contains__)[mine]
    if ns[known].sum() < 0.8 * ns.sum():
        return -1.0, NO_GAIN
    best = roof.achievable_ns[at][known]
    efficiency = float(best.sum() / max(int(ns[known].sum()), 1))
    if efficiency >= options.far:
        return efficiency, NO_GAIN
    changes = (
        Change(durations=(rows[known], shrunk(ns[known], best / part))) for part in options.reached
    )
    return efficiency, analysis.gain(*changes)


def _fix(at_floor: bool, found: OptimizerSteps) -> Fix:
    if at_floor or found.fused.size:
        return Fix(
            summary="Update less often (larger batch, gradient accumulation), keep moments in "
            "fewer bytes, or shard them across ranks.",
            snippet="if (i + 1) % 4 == 0:\n    optimizer.step()\n    optimizer.zero_grad()",
            reference=_OPTIM,
        )
    name = found.names[0] if found.names else "AdamW"
    return Fix(
        summary="Fuse the update, use fewer parameter groups, or update less often.",
        snippet=f"torch.optim.{name}(model.parameters(), fused=True)",
        reference=_OPTIM,
    )


def _updating(t: TraceBuilder, update_us: float) -> None:
    for step in range(4):
        at = step * 3_000
        t.step(at, 2_990)
        t.op("aten::mm", at + 10, 12, dims=[[4096, 4096], [4096, 4096]])
        t.kernel("gemm", at + 30, 1_500, launch_at=at + 14)
        t.annotation("Optimizer.step#AdamW.step", at + 40, 60)
        t.op("aten::_fused_adamw_", at + 42, 40)
        t.kernel("FusedAdamMathFunctor", at + 1_530, update_us, launch_at=at + 46)
        t.sync(at + 110, 1_420 + update_us)


def _long(t: TraceBuilder) -> None:
    _updating(t, 1_200)


def _short(t: TraceBuilder) -> None:
    _updating(t, 200)


RULE = Rule(
    code="CP227",
    name="optimizer-dominates-step",
    class_="compute",
    summary="The optimizer takes a large part of the step.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops"}),
    evidence="E",
    references=(_OPTIM,),
    remedies=("optimizer-implementation",),
    examples=(
        Example("an update of 1.2 ms in a step of 3 ms", _long, fires=True),
        Example("an update of 0.2 ms", _short, fires=False),
    ),
)
