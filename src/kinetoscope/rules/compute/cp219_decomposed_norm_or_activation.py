"""A norm, an activation or a position encoding runs as single operators.

## What it finds
RMSNorm or LayerNorm written as square, mean, add, rsqrt and products; GELU written with `tanh` or
`erf`; rotary positions written with `neg`, `cat` and products: five kernels and more where torch
has one.

## Why it matters
Each operator reads its tensor from memory and writes it back, forward and backward. The fused
operator reads and writes it once, and launches one kernel.

## How to fix it
`F.rms_norm`, `nn.LayerNorm`, `F.gelu(x, approximate="tanh")`; rotary positions and gated
activations from a library of fused kernels (Liger), or `torch.compile` for the module.

## Limits
A cast to float32 around the norm is kept: fused norms compute in float32 inside. SwiGLU (`silu`
and a product) is two kernels and left alone. Longer chains of other operators are CP212's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.decomposed import Written, written_out
from kinetoscope.metrics.device_ops import DeviceOps, args_of, device_ops
from kinetoscope.metrics.precision import FLOATING, element_size
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import (
    KERNEL_FLOOR_NS,
    busy_share,
    extent_of,
    per_step_ns,
    places,
)
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

FloatArray = npt.NDArray[np.float64]

_FIXES = {
    "RMSNorm or LayerNorm": (
        "Use the fused norm.",
        "y = F.rms_norm(x, x.shape[-1:], weight, eps)  # or F.layer_norm",
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.RMSNorm.html",
    ),
    "GELU": (
        "Use the fused activation.",
        'y = F.gelu(x, approximate="tanh")  # "none" for the form with erf',
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.gelu.html",
    ),
    "rotary position encoding": (
        "Compile the module with the rotation, or take it from a library of fused kernels.",
        "attention = torch.compile(attention)",
        "https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
    ),
}


class Thresholds(Options, frozen=True):
    """When a written-out form is worth a word."""

    min_share: float = 0.03
    """Share of the busy time in its kernels (RULES, CP219)."""
    forward: tuple[float, float, float] = (2.0, 1.3, 1.0)
    """Time of the fused forward over reading and writing the tensor once, in its narrowest type."""
    backward: tuple[float, float, float] = (4.0, 2.0, 1.2)
    """Time of the fused backward over three passes; reductions for weights make it slower."""
    blind: tuple[float, float, float] = (2.0, 1.2, 0.7)
    """Time of the fused kernel over that of the group's longest one, where the size of the data or
    the device is not known."""
    host_saved: tuple[float, float, float] = (0.4, 0.7, 0.85)
    """Part of the operators' host time that goes."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find the groups of each kind and replay each as one kernel forward and one backward."""
    groups = written_out(analysis.get(device_ops))
    for name in dict.fromkeys(group.name for group in groups):
        mine = [group for group in groups if group.name == name]
        yield from _kind(analysis, options, name, mine)


def _kind(
    analysis: Analysis, options: Thresholds, name: str, groups: list[Written]
) -> Iterator[Hit]:
    work = analysis.get(device_ops)
    owner = _owners(work, groups)
    rows = work.rows[owner >= 0]
    if busy_share(analysis, rows) < options.min_share:
        return
    share, spent = busy_share(analysis, rows), per_step_ns(analysis, rows)
    each = len(groups) / max(analysis.trace.steps.count, 1)
    kernels = analysis.in_window(rows).size / analysis.steps
    summary, snippet, reference = _FIXES[name]
    yield Hit(
        message=(
            f"{name} written out in single operators takes {duration(spent)} a step, "
            f"{percent(min(share, 1.0))} of the busy time, in {count(round(kernels))} kernels for "
            f"{count(round(each))} calls."
        ),
        evidence=(
            Evidence("written_out_time", spent, "ns"),
            Evidence("busy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("kernels_per_step", round(kernels, 1), "count"),
            Evidence("calls_per_step", round(each, 1), "count"),
        ),
        locations=places(analysis, np.sort(work.rows[np.concatenate([g.members for g in groups])])),
        fix=Fix(summary=summary, snippet=snippet, reference=reference),
        gain=analysis.gain(*_changes(analysis, options, work, owner)),
        confidence=0.7,
        claims=extent_of(analysis, rows),
        at_most="high",
    )


def _owners(work: DeviceOps, groups: list[Written]) -> IntArray:
    """Group of each device event, backward ones by the forward operator they belong to; -1."""
    owner = np.full(work.rows.size, -1, dtype=np.int64)
    of_op = np.full(len(work.trace) + 1, -1, dtype=np.int64)
    for number, group in enumerate(groups):
        owner[group.members] = number
        of_op[work.op[group.members]] = number
    rows = work.trace.tree.rows
    back = work.backward & (work.anchor >= 0)
    source = rows[np.maximum(work.anchor, 0)] if rows.size else work.anchor
    return np.where(back, of_op[source], owner)


def _changes(
    analysis: Analysis, options: Thresholds, work: DeviceOps, owner: IntArray
) -> list[Change]:
    """One kernel for each group and direction, at worst, likely and at best."""
    mine = np.flatnonzero(owner >= 0)
    key = 2 * owner[mine] + work.backward[mine]
    longest = np.lexsort((-work.ns[mine], key))
    first = longest[np.append(True, key[longest][1:] != key[longest][:-1])]
    keep = mine[first]
    total = np.bincount(key, weights=work.ns[mine])[key[first]]
    calls = np.setdiff1d(work.call[mine], work.call[keep])
    host = analysis.extent(np.unique(work.op[mine]))
    once = _pass_ns(analysis, work, owner)[owner[keep]]
    back = work.backward[keep]
    changes = []
    for forward, backward, blind, saved in zip(
        options.forward, options.backward, options.blind, options.host_saved, strict=True
    ):
        data = once * np.where(back, 3 * backward, 2 * forward)
        new = np.where(once > 0, np.maximum(data, KERNEL_FLOOR_NS), work.ns[keep] * blind)
        new = np.minimum(new, total)
        changes.append(
            Change(
                durations=(work.rows[keep], new.astype(np.int64)),
                drop_calls=calls[calls >= 0],
                host_cut=host,
                host_cut_factor=saved,
            )
        )
    return changes


def _pass_ns(analysis: Analysis, work: DeviceOps, owner: IntArray) -> FloatArray:
    """Time of moving each group's tensor once, in its narrowest type, ns; 0 when not known."""
    members = np.flatnonzero((owner >= 0) & ~work.backward)
    elements = np.zeros(int(owner.max(initial=-1)) + 1)
    width = np.full(elements.size, np.inf)
    for equal in work.groups(members):
        args = args_of(analysis.trace, int(work.op[equal[0]]))
        n = max((args.n(i) for i in args.tensors()), default=0)
        sizes = [
            element_size(args.dtype(i))
            for i in args.tensors()
            if args.n(i) == n and args.dtype(i) in FLOATING
        ]
        if n and sizes:
            np.maximum.at(elements, owner[equal], n)
            np.minimum.at(width, owner[equal], min(sizes))
    if analysis.peaks is None:
        return np.zeros(elements.size)
    known = np.isfinite(width)
    nbytes = elements * np.where(known, width, 0.0)
    return np.asarray(nbytes / analysis.peaks.achievable_bytes_per_ns)


def _norms(t: TraceBuilder, names: tuple[str, ...], dur: float) -> None:
    shape = [8_192, 4_096]
    for step in range(4):
        at = step * 6_000
        t.step(at, 5_990)
        for i, name in enumerate(names):
            t.op(f"aten::{name}", at + 10 + 20 * i, 15, dims=[shape, shape])
            t.kernel("elementwise_kernel", at + 200 + dur * i, dur, launch_at=at + 14 + 20 * i)
        t.op("aten::mm", at + 170, 15, dims=[shape, [4_096, 4_096]])
        t.kernel("gemm", at + 200 + dur * len(names), 1_500, launch_at=at + 174)
        t.sync(at + 195, dur * len(names) + 1_510)


def _pieces(t: TraceBuilder) -> None:
    _norms(t, ("pow", "mean", "add", "rsqrt", "mul", "mul"), 300)


def _others(t: TraceBuilder) -> None:
    _norms(t, ("mul", "add", "sigmoid", "mul", "add", "mul"), 300)


RULE = Rule(
    code="CP219",
    name="decomposed-norm-or-activation",
    class_="compute",
    summary="A norm, an activation or a position encoding runs as single operators.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "ops"}),
    evidence="TE",
    references=(
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.RMSNorm.html",
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.gelu.html",
    ),
    remedies=("compile",),
    examples=(
        Example("an RMSNorm of six kernels", _pieces, fires=True),
        Example("six other pointwise operators", _others, fires=False),
    ),
)
