"""Tensors are copied only to change their memory layout.

## What it finds
Copies of the same type made by `contiguous`, `reshape`, `flatten` or `clone` from a source that is
not contiguous, such as the result of `transpose` or `permute`.

## Why it matters
A transpose is free, but `.contiguous()` behind it reads and writes the whole tensor, and so does a
`reshape` that no view can express. The backward pass often copies once more.

## How to fix it
Leave `.contiguous()` out where the next operator takes strides (products, SDPA, most pointwise
operators do). Reorder views so that the reshape comes before the transpose; let `einsum` contract
in place; keep images in channels-last layout throughout.

## Limits
Some kernels need contiguous input and would copy themselves. The copy that merges the heads after
attention is usual and is counted only when much time goes into it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.cost import kernel_costs
from kinetoscope.metrics.cost_args import Args
from kinetoscope.metrics.device_ops import DeviceOps, args_of
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules._memory_order import between_formats, in_mixed_order
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._batch_norms import slow_batch_norms
from kinetoscope.rules.compute._kernels import (
    busy_share,
    device_work,
    extent_of,
    host_of,
    peaks,
    per_step_ns,
    places,
    shrunk,
)
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.kinds import Family, Kind
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray, Trace
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_MIXED = "time_with_operands_in_both_formats"
_MAKERS = frozenset({"contiguous", "reshape", "flatten", "clone", "_reshape_copy", "_unsafe_view"})


class Thresholds(Options, frozen=True):
    """When layout copies are worth a word."""

    min_share: float = 0.05
    """Share of the busy time in such copies; attention blocks have two to four percent."""
    removed: tuple[float, float, float] = (0.5, 0.8, 1.0)
    """Part of the copies that reordering removes."""
    mixed: tuple[float, float, float] = (0.0, 0.8, 1.0)
    """Part of the time that pointwise kernels lose to operands in both formats, and batch norms to
    channels-first tensors, which goes with the copies: at the cautious end only the copies go."""
    reached: float = 0.65
    """Share of the bandwidth that a pointwise kernel reaches when its operands agree (MM312)."""
    norm_over_roof: float = 2.2
    """Time of channels-last batch norm over that of its traffic at full bandwidth (CP208)."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find copies that only change the layout and replay without them."""
    work = device_work(analysis)
    maker = _makers(analysis.trace)
    copies = _layout_copies(analysis.trace, work, maker)
    rows = work.rows[copies]
    if rows.size == 0:
        return
    share = busy_share(analysis, rows)
    if share < options.min_share:
        return
    spent = per_step_ns(analysis, rows)
    host = host_of(analysis, work, copies)
    usual = _usual(analysis.trace, work, copies, maker)
    none = rows[:0]
    images = _are_images(analysis.trace, work, copies)
    mixed, agreed = _mixed(analysis, work, copies, options.reached) if images else (none, none)
    slower, agreed = _with_norms(analysis, work, mixed, agreed, options) if images else (none, none)
    lost = analysis.trace.column("dur_ns")[slower] - agreed
    yield Hit(
        message=(
            f"Copies that only change the memory layout take {duration(spent)} a step, "
            f"{percent(share)} of the device's busy time; most are made by {usual}."
        ),
        evidence=(
            Evidence("copy_time", spent, "ns"),
            Evidence("busy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("copies_per_step", analysis.in_window(rows).size // analysis.steps, "count"),
            *([Evidence(_MIXED, per_step_ns(analysis, mixed), "ns")] if mixed.size else ()),
        ),
        locations=places(analysis, rows, calls=("contiguous", "reshape", "flatten", "clone")),
        fix=_fix(usual, images=images),
        gain=analysis.gain(
            *(
                Change(
                    durations=(
                        np.concatenate((rows, slower)),
                        np.concatenate(
                            (work.ns[copies] * (1 - part), agreed + lost * (1 - agrees))
                        ).astype(np.int64),
                    ),
                    host_cut=host,
                    host_cut_factor=part,
                )
                for part, agrees in zip(options.removed, options.mixed, strict=True)
            )
        ),
        confidence=0.7,
        claims=extent_of(analysis, rows),
    )


def _fix(usual: str, *, images: bool) -> Fix:
    if images:
        return Fix(
            summary=f"Remove the {usual} calls, and keep the model and its input in one memory "
            "format from end to end.",
            snippet="model = model.to(memory_format=torch.channels_last)\n"
            "x = x.to(memory_format=torch.channels_last)   # and no .contiguous() after it",
            reference="https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html",
        )
    return Fix(
        summary=f"Remove the {usual} calls that the next operator does not need, or reorder the "
        "views so that no copy is necessary.",
        snippet="y = x.transpose(1, 2)  # without .contiguous()",
        reference="https://docs.pytorch.org/docs/stable/tensor_view.html",
    )


def _are_images(trace: Trace, work: DeviceOps, copies: IntArray) -> bool:
    """Does most of the copies' time go between channels-first and channels-last?"""
    between = np.zeros(work.rows.size, dtype=bool)
    for group in work.groups(copies):
        between[group] = between_formats(args_of(trace, int(work.op[group[0]])))
    ns = work.ns[copies]
    return bool(ns[between[copies]].sum() > ns.sum() / 2)


_LARGE_NS = 10_000
"""Shorter kernels are bound by their start-up."""


def _mixed(
    analysis: Analysis, work: DeviceOps, copies: IntArray, reached: float
) -> tuple[IntArray, IntArray]:
    """Pointwise kernels whose operands come in both formats, and their time if they agreed, ns."""
    costs, device = analysis.get(kernel_costs), peaks(analysis)
    pointwise = np.flatnonzero((work.family == Family.ELEMENTWISE) & (work.ns >= _LARGE_NS))
    pointwise = np.setdiff1d(pointwise[work.op[pointwise] >= 0], copies)
    if device is None or pointwise.size == 0:
        return work.rows[:0], work.rows[:0]
    rows = work.rows[pointwise[in_mixed_order(analysis, work, pointwise)]]
    at = np.minimum(np.searchsorted(costs.rows, rows), max(costs.rows.size - 1, 0))
    known = (costs.rows[at] == rows) & (costs.bytes[at] > 0)
    rows, at = rows[known], at[known]
    moved = costs.bytes[at] / (reached * device.bandwidth_gbps)
    return rows, shrunk(analysis.trace.column("dur_ns")[rows], moved)


def _with_norms(
    analysis: Analysis, work: DeviceOps, mixed: IntArray, agreed: IntArray, options: Thresholds
) -> tuple[IntArray, IntArray]:
    """These kernels and the batch norms of channels-first tensors, and their times afterwards."""
    norms, roof = slow_batch_norms(analysis, work)
    new = np.minimum(work.ns[norms], options.norm_over_roof * roof).astype(np.int64)
    return np.concatenate((mixed, work.rows[norms])), np.concatenate((agreed, new))


def _makers(trace: Trace) -> IntArray:
    """For each call-tree node the outermost operator around it that copies for the layout; -1.

    `contiguous` calls `clone` calls `copy_`: the first is what the program says.
    """
    tree = trace.tree
    flags = trace.name_flags(lambda n: short_name(n) in _MAKERS)
    chosen = flags[trace.column("name_id")[tree.rows]] & (tree.kind == Kind.CPU_OP)
    found = nearest(chosen, tree.parent)
    for _ in range(len(_MAKERS)):
        above = np.where(found >= 0, tree.parent[np.maximum(found, 0)], -1)
        outer = np.where(above >= 0, found[np.maximum(above, 0)], -1)
        if not (outer >= 0).any():
            break
        found = np.where(outer >= 0, outer, found)
    return found


def _layout_copies(trace: Trace, work: DeviceOps, maker: IntArray) -> IntArray:
    """Positions of the events that copy a tensor of another layout without changing its type."""
    found: npt.NDArray[np.bool_] = work.named("copy_", "clone") & ~work.optimizer & (work.op >= 0)
    node = trace.tree.node_of[np.maximum(work.op, 0)]
    found &= (node >= 0) & (maker[np.maximum(node, 0)] >= 0) if maker.size else False
    chosen = np.zeros(found.size, dtype=bool)
    for group in work.groups(np.flatnonzero(found)):
        chosen[group] = _changes_layout(args_of(trace, int(work.op[group[0]])))
    return np.flatnonzero(chosen)


def _changes_layout(args: Args) -> bool:
    """`copy_(target, source)` of one type whose strides differ, the source's not being dense."""
    if len(args.dims) < 2 or not (args.is_tensor(0) and args.is_tensor(1)):
        return False
    if args.dtype(0) is not args.dtype(1) or args.dims[0] != args.dims[1]:
        return False
    strides = [args.strides[i] if i < len(args.strides) else [] for i in (0, 1)]
    if not all(isinstance(s, list) and len(s) == len(args.dims[0]) for s in strides):
        return False
    shape = args.dims[1]
    real = [s for s, n in zip(strides[1], shape, strict=True) if n > 1]
    target = [s for s, n in zip(strides[0], shape, strict=True) if n > 1]
    expanded = 0 in real
    return bool(real) and not expanded and real != target


def _usual(trace: Trace, work: DeviceOps, copies: IntArray, maker: IntArray) -> str:
    """Name of the operator under which most of the time is copied."""
    node = maker[trace.tree.node_of[work.op[copies]]]
    ids = trace.column("name_id")[trace.tree.rows[node]].astype(np.int64)
    total = np.bincount(ids, weights=work.ns[copies])
    return f"`{short_name(trace.names[int(total.argmax())])}`"


def _layers(t: TraceBuilder, copy_us: float) -> None:
    shape = [64, 512, 1024]
    moved, dense = [512 * 1024, 1, 512], [512 * 1024, 1024, 1]
    for step in range(4):
        at = step * 4_000
        t.step(at, 3_990)
        for i in range(4):
            host, begin = at + 10 + 40 * i, at + 200 + i * (copy_us + 400)
            t.op("aten::contiguous", host, 30, dims=[shape, []], strides=[moved, []])
            t.op("aten::clone", host + 1, 28, dims=[shape, []], strides=[moved, []])
            t.op("aten::copy_", host + 4, 20, dims=[shape, shape, []], strides=[dense, moved, []])
            t.kernel("elementwise_kernel", begin, copy_us, launch_at=host + 8)
            t.op("aten::mm", host + 32, 7, dims=[[1024, 1024], [1024, 1024]])
            t.kernel("sm90_gemm", begin + copy_us, 400, launch_at=host + 33)
        t.sync(at + 190, 4 * (copy_us + 400))


def _images(t: TraceBuilder) -> None:
    """A block copies its input to channels-first order, and adds the result to that input.

    67 million elements of two bytes: the addition moves 403 MB, 0.13 ms at 0.65 of 4.8 TB/s.
    """
    shape = [64, 256, 64, 64]
    last, first = [1_048_576, 1, 16_384, 256], [1_048_576, 4_096, 64, 1]
    half = ["c10::BFloat16"] * 2
    for step in range(4):
        at = step * 2_000
        t.step(at, 1_990)
        t.op("aten::contiguous", at + 10, 30, dims=[shape, []], strides=[last, []])
        t.op("aten::clone", at + 11, 28, dims=[shape, []], strides=[last, []])
        strides = [first, last, []]
        t.op("aten::copy_", at + 14, 20, dims=[shape, shape, []], strides=strides, types=half)
        t.kernel("elementwise_kernel", at + 100, 400, launch_at=at + 18)
        t.op("aten::add", at + 50, 20, dims=[shape, shape, []], strides=strides, types=half)
        t.kernel("elementwise_kernel", at + 500, 640, launch_at=at + 55)
        t.op("aten::mm", at + 80, 7, dims=[[1024, 1024], [1024, 1024]])
        t.kernel("sm90_gemm", at + 1_140, 800, launch_at=at + 83)
        t.sync(at + 90, 1_860)


def _costly(t: TraceBuilder) -> None:
    _layers(t, 300)


def _cheap(t: TraceBuilder) -> None:
    _layers(t, 10)


RULE = Rule(
    code="CP222",
    name="hidden-layout-copies",
    class_="compute",
    summary="Tensors are copied only to change their memory layout.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "shapes"}),
    evidence="TE",
    remedies=("compile",),
    references=("https://docs.pytorch.org/docs/stable/tensor_view.html",),
    examples=(
        Example("a block that leaves channels-last order", _images, fires=True),
        Example("a transposed copy before every product", _costly, fires=True),
        Example("copies of 2 % of the busy time", _cheap, fires=False),
    ),
)
