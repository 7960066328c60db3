"""An optimizer for each parameter or layer, stepped one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import device_ops
from kinetoscope.metrics.intervals import measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Hit
from kinetoscope.rules.framework._optimizer import OptimizerSteps
from kinetoscope.trace.kinds import RUNTIME_KINDS
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration, percent


def host_share_of(analysis: Analysis, found: OptimizerSteps) -> float:
    """Host time of all optimizers as a share of the step."""
    time = measure(found.time)
    return time / max(analysis.trace.steps.count * analysis.step_ns, 1)


def many_optimizers(
    analysis: Analysis,
    found: OptimizerSteps,
    *,
    parts: Sequence[float],
    left_ns: Sequence[float],
    passes: Sequence[float],
) -> Hit:
    """The steps of all optimizers replayed as one, at worst, likely and at best.

    Args:
        analysis: of one rank.
        found: the steps of all optimizers.
        parts: which part of the others' host time goes.
        left_ns: host time that each tensor still costs.
        passes: device time of the joint update over that of the single ones.
    """
    time, share = found.time, host_share_of(analysis, found)
    per_step = measure(time) // max(analysis.trace.steps.count, 1)
    each = found.rows.size / max(analysis.trace.steps.count, 1)
    name = " and ".join(found.names) or "An optimizer"
    return Hit(
        message=(
            f"{name} steps {count(round(each))} times in a step, for a few tensors each: "
            f"{duration(per_step)} of the host's time ({percent(min(share, 1.0))} of the step)."
        ),
        evidence=(
            Evidence("optimizer_time", per_step, "ns"),
            Evidence("optimizer_steps", round(each), "count"),
        ),
        locations=analysis.locations(found.rows, calls=("step",)),
        fix=Fix(
            summary="Give one optimizer all parameters; groups keep their own options.",
            snippet=f"optimizer = torch.optim.{found.names[0] if found.names else 'AdamW'}"
            "(model.parameters(), fused=True)",
            reference="https://docs.pytorch.org/docs/stable/optim.html#per-parameter-options",
        ),
        gain=analysis.gain(*_changes(analysis, found, parts, left_ns, passes)),
        confidence=0.8,
        claims=time,
    )


@dataclass(frozen=True)
class OneForAll:
    """What goes when the work of many optimizers is left to one; all by row.

    Attributes:
        others: the steps that vanish: of those in one step of the program all but the last.
        drop: the runtime calls inside them.
        kept: the device events of the last one.
        total_ns: what the kept ones take with the work of the others, for each.
    """

    others: IntArray
    drop: IntArray
    kept: IntArray
    total_ns: IntArray


def one_for_all(analysis: Analysis, found: OptimizerSteps) -> OneForAll:
    """The last optimizer's step of each step of the program takes the others' work over."""
    trace = analysis.trace
    ts, dur, thread = (trace.column(c) for c in ("ts_ns", "dur_ns", "thread"))
    rows = found.rows[np.argsort(ts[found.rows], kind="stable")]
    step = trace.steps.of(ts[rows])
    last = np.append(step[1:] != step[:-1], True)
    others = rows[~last]
    calls = analysis.rows(*RUNTIME_KINDS)
    owner = np.searchsorted(ts[rows], ts[calls], side="right") - 1
    inside = (owner >= 0) & (ts[calls] < (ts + dur)[rows[np.maximum(owner, 0)]])
    inside &= thread[calls] == thread[rows[np.maximum(owner, 0)]]
    drop = calls[inside & ~last[np.maximum(owner, 0)]]
    work = analysis.get(device_ops)
    if calls.size == 0:
        return OneForAll(others, calls, work.rows[:0], work.ns[:0])
    at = np.searchsorted(calls, np.maximum(work.call, 0))
    at = np.minimum(at, calls.size - 1)
    mine = (work.call >= 0) & inside[at] & (calls[at] == work.call)
    of = step[np.maximum(owner[at], 0)]
    ns = np.bincount(np.maximum(of[mine], 0), work.ns[mine], trace.steps.count)
    kept = mine & last[np.maximum(owner[at], 0)]
    count = np.bincount(np.maximum(of[kept], 0), minlength=trace.steps.count)
    each = ns / np.maximum(count, 1)
    return OneForAll(others, drop, work.rows[kept], each[np.maximum(of[kept], 0)].astype(np.int64))


def _changes(
    analysis: Analysis,
    found: OptimizerSteps,
    parts: Sequence[float],
    left_ns: Sequence[float],
    passes: Sequence[float],
) -> tuple[Change, Change, Change]:
    joint = one_for_all(analysis, found)
    each = joint.others.size // max(analysis.steps_on_host, 1)
    low, mid, high = (
        Change(
            host_cut=analysis.extent(joint.others),
            host_cut_factor=part,
            drop_calls=joint.drop,
            durations=(joint.kept, np.maximum(joint.total_ns * share, 1_000).astype(np.int64)),
            extra_host_ns=round(each * left),
        )
        for part, left, share in zip(parts, left_ns, passes, strict=True)
    )
    return low, mid, high
