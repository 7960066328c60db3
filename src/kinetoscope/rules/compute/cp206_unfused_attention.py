"""Attention is written out as product, softmax and product, with the scores in memory.

## What it finds
A softmax between two matrix products, the first of which made the scores that it normalises and
the second of which reads its result; scaling, masks, casts and dropout in between. The backward
pass of all of that counts too.

## Why it matters
The score matrix has sequence length squared elements for each head. Each operator in between
reads and writes it once, so the attention is bound by memory, and its time and memory grow with
the square of the length. A fused kernel never writes the scores.

## How to fix it
`torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)` in place of the whole
sequence; `attn_mask=` takes any mask. For biases that are computed from positions (ALiBi, relative
positions) or document masks use `torch.nn.attention.flex_attention`. With
`nn.MultiheadAttention` pass `need_weights=False`.

## Limits
Code that returns the attention weights needs them in memory. Dropout on the scores is supported
(`dropout_p`). For float32 inputs only the memory-efficient kernel is available.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.attention import Attention, written_out_attention
from kinetoscope.metrics.device_ops import DeviceOps
from kinetoscope.metrics.hardware import Peaks
from kinetoscope.metrics.intervals import Intervals, clip, empty, measure, union
from kinetoscope.metrics.precision import Dtype, element_size, math_of
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Gain, Location
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import (
    KERNEL_FLOOR_NS,
    busy_share,
    device_work,
    extent_of,
    peaks,
    per_step_ns,
)
from kinetoscope.trace.trace import IntArray, Trace
from kinetoscope.units import duration, percent, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_SDPA = (
    "https://docs.pytorch.org/docs/stable/generated/"
    "torch.nn.functional.scaled_dot_product_attention.html"
)
_BACKWARD = 2.5
"""Backward of a fused attention over its forward: five products instead of two."""


class Thresholds(Options, frozen=True):
    """When written-out attention is worth a word."""

    min_scores_bytes: int = 1 << 20
    """Smallest score matrix; below, all of it stays in the cache."""
    min_share: float = 0.05
    """Share of the busy time in the attention's kernels."""
    rates: tuple[float, float, float] = (0.15, 0.35, 0.6)
    """Share of the matrix units' peak that fused attention reaches at worst, likely, at best;
    0.25 to 0.8 were seen on an H200, lowest for short sequences and small heads."""
    host_saving: tuple[float, float, float] = (0.2, 0.4, 0.7)
    """Without a device: part of the time that the fused operator for the CPU saves."""


@dataclass(frozen=True)
class _Work:
    """Device events of the attentions: `keep` become the fused kernels, `drop` vanish."""

    rows: IntArray
    keep: IntArray
    fused: tuple[IntArray, IntArray, IntArray]
    drop: IntArray
    host: Intervals


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find written-out attention, forward and backward, and replay it fused."""
    found = tuple(
        a
        for a in analysis.get(written_out_attention)
        if a.scores * max(element_size(a.dtype), 1) >= options.min_scores_bytes
    )
    if not found:
        return
    if analysis.device is None:
        yield from _on_host(analysis, options, found)
        return
    work = _work(analysis, options, found)
    share = busy_share(analysis, work.rows)
    if share < options.min_share:
        return
    spent = per_step_ns(analysis, work.rows)
    low, mid, high = (
        Change(durations=(work.keep, new), drop_calls=work.drop, host_cut=work.host)
        for new in work.fused
    )
    # The fused call may take the host as long as the operators did: its checks and its choice of
    # a backend are slow as well. The launches go.
    gain = analysis.gain(replace(low, host_cut=empty()), mid, high)
    yield _hit(analysis, found, gain, (spent, share), extent_of(analysis, work.rows))


def _on_host(
    analysis: Analysis, options: Thresholds, found: tuple[Attention, ...]
) -> Iterator[Hit]:
    """Without a device: the operators themselves are the work."""
    start = np.array([a.start for a in found])
    time = union(start, np.array([a.end for a in found]))
    inside = clip(time, *analysis.window)
    share = measure(inside) / max(analysis.step_ns * analysis.steps, 1)
    if share < options.min_share:
        return
    gain = analysis.gain(
        *(Change(host_cut=time, host_cut_factor=part) for part in options.host_saving)
    )
    yield _hit(analysis, found, gain, (measure(inside) // analysis.steps, share), inside)


def _hit(
    analysis: Analysis,
    found: tuple[Attention, ...],
    gain: Gain,
    cost: tuple[int, float],
    claims: Intervals,
) -> Hit:
    biggest = max(found, key=lambda a: a.scores)
    nbytes = biggest.scores * max(element_size(biggest.dtype), 1)
    spent, share = cost
    mask = ", is_causal=True" if biggest.masked and biggest.queries == biggest.keys else ""
    whole = "device's busy time" if analysis.device else "step"
    return Hit(
        message=(
            f"Attention written out in separate operators takes {duration(spent)} a step, "
            f"{percent(share)} of the {whole}; each writes a score matrix of {size(nbytes)} "
            f"({biggest.batch} x {biggest.queries} x {biggest.keys}) several times."
        ),
        evidence=(
            Evidence("attention_time", spent, "ns"),
            Evidence("share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("scores", nbytes, "bytes", "derived"),
            Evidence("calls_per_step", len(found) // max(analysis.trace.steps.count, 1), "count"),
        ),
        locations=_locations(analysis, found),
        fix=Fix(
            summary="Replace the products, the mask and the softmax by one "
            "scaled_dot_product_attention call.",
            snippet=f"out = F.scaled_dot_product_attention(q, k, v{mask})",
            reference=_SDPA,
        ),
        gain=gain,
        confidence=0.9,
        claims=claims,
    )


def _locations(analysis: Analysis, found: tuple[Attention, ...]) -> tuple[Location, ...]:
    nodes = np.array([a.first for a in found])
    weights = np.array([a.scores for a in found], dtype=np.int64)
    rows = analysis.trace.tree.rows[nodes]
    return analysis.locations(rows, weights, calls=("matmul", "bmm", "baddbmm", "einsum"))


def _work(analysis: Analysis, options: Thresholds, found: tuple[Attention, ...]) -> _Work:
    """Device events and host time of each attention, forward and backward apart."""
    work, device = device_work(analysis), peaks(analysis)
    owner = _owner(analysis.trace, work, found)
    keep: list[int] = []
    fused: list[tuple[int, int, int]] = []
    drop: list[IntArray] = []
    for number, attention in enumerate(found):
        for backward in (False, True):
            mine = np.flatnonzero((owner == number) & (work.backward == backward))
            if mine.size == 0:
                continue
            longest = int(mine[work.ns[mine].argmax()])
            keep.append(longest)
            fused.append(_fused_ns(options, attention, device, int(work.ns[mine].sum()), backward))
            drop.append(work.call[mine[mine != longest]])
    kept = np.array(keep, dtype=np.int64)
    new = np.array(fused, dtype=np.int64).reshape(-1, 3)
    gone = np.concatenate(drop) if drop else kept
    return _Work(
        rows=work.rows[owner >= 0],
        keep=work.rows[kept],
        fused=(new[:, 0], new[:, 1], new[:, 2]),
        drop=gone[gone >= 0],
        host=_host_time(analysis.trace, found, work.op[kept]),
    )


def _fused_ns(
    options: Thresholds, a: Attention, device: Peaks | None, before: int, backward: bool
) -> tuple[int, int, int]:
    """Time of the fused kernel at worst, likely and at best."""
    if device is None:
        return int(before * 0.7), int(before * 0.4), int(before * 0.2)
    passes = _BACKWARD if backward else 1.0
    flop = 4.0 * a.scores * a.head * passes
    traffic = 2.0 * a.batch * (a.queries + a.keys) * a.head * max(element_size(a.dtype), 2) * passes
    peak = max(device.flop_per_ns(math_of(a.dtype, 0, matrix=True)), 1.0)
    scale = 2.0 if a.dtype is Dtype.FP32 else 1.0  # plain float32 kernels come closer to their peak
    causal = 0.5 if a.masked and a.queries == a.keys else 1.0
    low, mid, high = (
        max(part * flop / (min(rate * scale, 0.8) * peak), traffic / device.achievable_bytes_per_ns)
        for rate, part in zip(options.rates, (1.0, 1.0, causal), strict=True)
    )
    floor = KERNEL_FLOOR_NS
    return (
        int(min(max(low, floor), before)),
        int(min(max(mid, floor), before)),
        int(min(max(high, floor), before)),
    )


def _owner(trace: Trace, work: DeviceOps, found: tuple[Attention, ...]) -> IntArray:
    """Index of the attention that each device event belongs to; -1: none."""
    anchor = np.maximum(work.anchor, 0)
    known = work.anchor >= 0
    return _inside(trace.tree.thread[anchor], trace.tree.start[anchor], known, found)


def _inside(
    thread: IntArray,
    start: IntArray,
    known: npt.NDArray[np.bool_],
    found: tuple[Attention, ...],
) -> IntArray:
    result = np.full(start.size, -1, dtype=np.int64)
    for lane in {a.thread for a in found}:
        numbers = np.array([i for i, a in enumerate(found) if a.thread == lane])
        low = np.array([found[i].start for i in numbers])
        high = np.array([found[i].end for i in numbers])
        at = np.searchsorted(low, start, side="right") - 1
        safe = np.maximum(at, 0)
        mine = known & (thread == lane) & (at >= 0) & (start < high[safe])
        result[mine] = numbers[safe[mine]]
    return result


def _host_time(trace: Trace, found: tuple[Attention, ...], kept: IntArray) -> Intervals:
    """Host time that goes: forward up to the last product, and all but one backward node."""
    tree, links = trace.tree, trace.links
    start = np.array([a.start for a in found])
    end = np.array([int(tree.start[a.last]) for a in found])
    roots = np.unique(links.backward_root[links.backward_root >= 0])
    source = links.forward[roots] if roots.size else roots
    safe = np.maximum(source, 0)
    owner = _inside(tree.thread[safe], tree.start[safe], source >= 0, found)
    nodes = tree.node_of[kept[kept >= 0]]
    spared = links.backward_root[nodes[nodes >= 0]]
    gone = roots[(owner >= 0) & ~np.isin(roots, spared)]
    return union(np.concatenate((start, tree.start[gone])), np.concatenate((end, tree.end[gone])))


def _attention(t: TraceBuilder, length: int, dur: float) -> None:
    scores, flat = [2, 8, length, length], [16, length, length]
    for step in range(4):
        at = step * 20_000
        t.step(at, 19_900)
        names = (
            ("aten::bmm", [[16, length, 64], [16, 64, length]], "nvjet_tst_256x128_TNT"),
            ("aten::div", [scores, []], "vectorized_elementwise_kernel"),
            ("aten::_softmax", [scores, [], []], "cunn_SoftMaxForward"),
            ("aten::bmm", [flat, [16, length, 64]], "nvjet_tst_64x256_NNN"),
            ("aten::mm", [[4096, 512], [512, 512]], "nvjet_tst_64x256_NNN"),
        )
        for i, (name, dims, kernel) in enumerate(names):
            t.op(name, at + 10 + 20 * i, 12, dims=dims)
            length_us = dur if i < 4 else 400
            t.kernel(kernel, at + 200 + dur * i, length_us, launch_at=at + 14 + 20 * i)
        t.sync(at + 110, 4 * dur + 500)


def _long(t: TraceBuilder) -> None:
    _attention(t, 2_048, 2_000)


def _short(t: TraceBuilder) -> None:
    _attention(t, 64, 3)


RULE = Rule(
    code="CP206",
    name="unfused-attention",
    class_="compute",
    summary="Attention is written out as product, softmax and product instead of one fused call.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops", "shapes"}),
    evidence="TE",
    remedies=("compile",),
    references=(
        _SDPA,
        "https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html",
    ),
    examples=(
        Example("scores of 2048 x 2048 for each head in memory", _long, fires=True),
        Example("64 positions: the scores stay in the cache", _short, fires=False),
    ),
)
