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
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.attention import Attention, written_out_attention
from kinetoscope.metrics.intervals import Intervals, clip, empty, measure, union
from kinetoscope.metrics.precision import element_size
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Gain, Location
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._attention import fused_work
from kinetoscope.rules.compute._kernels import (
    busy_share,
    extent_of,
    per_step_ns,
)
from kinetoscope.units import duration, percent, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_SDPA = (
    "https://docs.pytorch.org/docs/stable/generated/"
    "torch.nn.functional.scaled_dot_product_attention.html"
)


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
    work = fused_work(analysis, options.rates, found)
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
