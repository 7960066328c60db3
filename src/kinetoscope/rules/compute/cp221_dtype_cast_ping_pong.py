"""Tensors are cast to another type and soon cast back.

## What it finds
Pairs of casts in opposite direction of tensors of one shape, shortly after one another in the
forward pass (`.float()` ... `.half()`), with what the backward pass casts for them.

## Why it matters
Each cast reads and writes the whole tensor and computes nothing. Under autocast each change
between operators of the two lists (norms and losses in float32, products in bfloat16) makes one.

## How to fix it
Drop `.float()` where the operator computes in float32 inside (norms, softmax, cross entropy);
keep activations in bfloat16 from end to end; let `torch.compile` fuse casts into their
neighbours.

## Limits
One cast of each weight a step is what autocast does and is not counted. A cast around a sum of
many small numbers may be needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.cost_args import Args
from kinetoscope.metrics.device_ops import DeviceOps, args_of, dense, device_ops
from kinetoscope.metrics.precision import FLOATING, element_size
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import busy_share, extent_of, host_of, per_step_ns, places
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_AMP = "https://docs.pytorch.org/docs/stable/amp.html"


class Thresholds(Options, frozen=True):
    """When casting is worth a word."""

    min_share: float = 0.03
    """Share of the busy time in pairs of casts (RULES, CP221)."""
    reach: int = 16
    """Device events between the two casts at most; a layer between two norms has more."""
    removed: tuple[float, float, float] = (0.5, 1.0, 1.0)
    """Part of the casts that goes."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find pairs of casts and replay without them."""
    work = analysis.get(device_ops)
    pairs = _pairs(analysis, work, options)
    which = np.union1d(pairs, _backward_of(work, pairs))
    rows = work.rows[which]
    if rows.size == 0 or busy_share(analysis, rows) < options.min_share:
        return
    share, spent = busy_share(analysis, rows), per_step_ns(analysis, rows)
    calls = work.call[which]
    yield Hit(
        message=(
            f"Tensors are cast to another type and soon cast back: {duration(spent)} a step, "
            f"{percent(min(share, 1.0))} of the busy time."
        ),
        evidence=(
            Evidence("cast_time", spent, "ns"),
            Evidence("busy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("casts_per_step", analysis.in_window(rows).size // analysis.steps, "count"),
        ),
        locations=places(
            analysis, work.rows[pairs], calls=("to", "float", "half", "bfloat16", "type", "double")
        ),
        fix=Fix(
            summary="Drop casts around operators that compute in float32 by themselves, and keep "
            "the type from end to end.",
            snippet="y = F.softmax(x, dim=-1)  # in place of F.softmax(x.float(), -1).to(x.dtype)",
            reference=_AMP,
        ),
        gain=analysis.gain(
            *(
                Change(
                    durations=(rows, (work.ns[which] * (1 - part)).astype(np.int64)),
                    drop_calls=calls[calls >= 0] if part == 1.0 else None,
                    host_cut=host_of(analysis, work, which),
                    host_cut_factor=part,
                )
                for part in options.removed
            )
        ),
        confidence=0.7,
        claims=extent_of(analysis, rows),
        at_most="high",
    )


def _pairs(analysis: Analysis, work: DeviceOps, options: Thresholds) -> IntArray:
    """Positions of casts with a cast back among the next events of the step, and of those."""
    found = work.named("copy_", "_to_copy") & ~work.optimizer & ~work.backward & (work.op >= 0)
    candidate = np.flatnonzero(found & (work.call >= 0))
    shape = np.full(work.rows.size, -1, dtype=np.int64)
    up = np.zeros(work.rows.size, dtype=np.int8)
    known: dict[tuple[int, ...], int] = {}
    for group in work.groups(candidate):
        cast = _cast(args_of(analysis.trace, int(work.op[group[0]])))
        if cast is not None:
            shape[group] = known.setdefault(cast[0], len(known))
            up[group] = cast[1]
    cast_at = np.flatnonzero(shape >= 0)
    ts = analysis.trace.column("ts_ns")[work.call[cast_at]]
    step = np.searchsorted(analysis.trace.steps.edges, ts, side="right").astype(np.int64)
    key = dense([shape[cast_at], step, work.stream[cast_at]])
    order = cast_at[np.lexsort((cast_at, key))]
    key = np.sort(key)
    near = (key[1:] == key[:-1]) & (up[order[1:]] != up[order[:-1]])
    near &= np.diff(order) <= options.reach
    first = np.flatnonzero(near)
    return np.union1d(order[first], order[first + 1])


def _cast(args: Args) -> tuple[tuple[int, ...], int] | None:
    """Shape of a cast between floating types, and whether it widens (1) or narrows (-1)."""
    if not (args.is_tensor(0) and args.is_tensor(1)) or args.n(0) < 2:
        return None
    target, source = args.dtype(0), args.dtype(1)
    if target not in FLOATING or source not in FLOATING or args.dims[0] != args.dims[1]:
        return None
    wider = element_size(target) - element_size(source)
    return None if wider == 0 else (args.shape(0), 1 if wider > 0 else -1)


def _backward_of(work: DeviceOps, pairs: IntArray) -> IntArray:
    """Casts of the backward pass that belong to these of the forward pass."""
    trace = work.trace
    nodes = trace.links.node[work.rows[pairs]]
    outer = np.unique(np.maximum(trace.tree.parent[nodes[nodes >= 0]], 0))
    back = work.backward & work.named("copy_", "_to_copy") & np.isin(work.anchor, outer)
    return np.flatnonzero(back)


def _casting(t: TraceBuilder, *, back: bool) -> None:
    shape, half, single = [8_192, 4_096], "c10::BFloat16", "float"
    for step in range(4):
        at = step * 3_000
        t.step(at, 2_990)
        casts = (((single, half), at + 10), ((half, single) if back else (single, half), at + 90))
        for number, (types, begin) in enumerate(casts):
            t.op("aten::_to_copy", begin, 30, dims=[shape], types=[types[1]])
            t.op("aten::copy_", begin + 4, 20, dims=[shape, shape, []], types=[*types, "Scalar"])
            t.kernel("copy_kernel", at + 130 + 500 * number, 200, launch_at=begin + 8)
        t.op("aten::softmax", at + 50, 20, dims=[shape])
        t.kernel("softmax", at + 330, 300, launch_at=at + 55)
        t.op("aten::mm", at + 130, 12, dims=[shape, [4_096, 4_096]])
        t.kernel("gemm", at + 830, 1_200, launch_at=at + 134)
        t.sync(at + 150, 1_890)


def _there_and_back(t: TraceBuilder) -> None:
    _casting(t, back=True)


def _one_way(t: TraceBuilder) -> None:
    _casting(t, back=False)


RULE = Rule(
    code="CP221",
    name="dtype-cast-ping-pong",
    class_="compute",
    summary="Tensors are cast to another type and soon cast back.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "shapes"}),
    evidence="TE",
    references=(_AMP,),
    remedies=("compile",),
    examples=(
        Example("a softmax between a cast to float32 and one back", _there_and_back, fires=True),
        Example("casts in one direction, as autocast makes them", _one_way, fires=False),
    ),
)
