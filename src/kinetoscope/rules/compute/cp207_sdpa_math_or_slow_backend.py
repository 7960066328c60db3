"""scaled_dot_product_attention runs a slow form though a faster one could take these tensors.

## What it finds
Calls of `scaled_dot_product_attention` that run as separate operators
(`_scaled_dot_product_attention_math`), or by the memory-efficient kernel in half precision where
FlashAttention could run. And calls that are given a mask with an entry for each query and each key,
one for all heads, as the causal mask written out is.

## Why it matters
The math form writes the matrix of scores to memory several times, as attention written by hand
does. The memory-efficient kernel avoids that but is older and slower than FlashAttention. A kernel
cannot know what a mask holds: it computes what is hidden and reads the mask for it. Told that the
attention is causal, it skips half of the blocks.

## How to fix it
Keep queries, keys and values in bfloat16 or float16, with a head size that is a multiple of 8 and
at most 256; say `is_causal=True` in place of passing a mask; FlexAttention for other masks. To
see why a form is refused: `with torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION):`.

## Limits
Which of the reasons applies is read off types and shapes. A mask that is not the causal one needs
FlexAttention, whose speed is not that of FlashAttention. That a dense mask is the causal one shows
where the recording holds the `triu`, the `tril` or the comparison of positions that made it;
otherwise it may be a window, or hide little, and the finding is of medium severity at most. Padding
masks, a bias for each head and one that is learned are left alone. Devices before compute
capability 8.0 have no FlashAttention.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.attention import Attention
from kinetoscope.metrics.cost_args import Args, NotRecordedError
from kinetoscope.metrics.device_ops import args_of
from kinetoscope.metrics.intervals import empty, union
from kinetoscope.metrics.precision import Dtype
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._attention import FusedWork, fused_work
from kinetoscope.rules.compute._dense_mask import through_dense_masks
from kinetoscope.rules.compute._kernels import busy_share, extent_of, per_step_ns
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_MATH = "_scaled_dot_product_attention_math"
_EFFICIENT = "_scaled_dot_product_efficient_attention"
_HALF = (Dtype.BF16, Dtype.FP16)
_MASK, _CAUSAL = 3, {_MATH: 5, _EFFICIENT: 6}
"""Positions of the mask, and of `is_causal`, among the arguments."""
_LARGEST_HEAD = 256
_FLASH_CAPABILITY = 8
_SDPA = (
    "https://docs.pytorch.org/docs/stable/generated/"
    "torch.nn.functional.scaled_dot_product_attention.html"
)


class Thresholds(Options, frozen=True):
    """When a slow form is worth a word."""

    min_share: float = 0.03
    """Share of the busy time in these attentions (RULES, CP207)."""
    rates: tuple[float, float, float] = (0.15, 0.35, 0.6)
    """As for attention written by hand (CP206)."""
    masked: tuple[float, float, float] = (1.1, 0.75, 0.5)
    """Time of a block without a mask over that with one (0.66 on an H200, cuDNN, both passes)."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find calls of each slow form and replay them fused."""
    for form in (_MATH, _EFFICIENT):
        calls = _calls(analysis, form)
        if not calls:
            continue
        found = tuple(attention for attention, _ in calls)
        work = fused_work(analysis, options.rates, found)
        share = busy_share(analysis, work.rows)
        if work.rows.size and share >= options.min_share:
            yield _hit(analysis, form, calls, (work, share))
    yield from through_dense_masks(analysis, options.min_share, options.masked)


def _calls(analysis: Analysis, form: str) -> list[tuple[Attention, str]]:
    """Calls of a form that a faster one could take, with the reason why it was not taken."""
    tree = analysis.trace.tree
    chosen = analysis.trace.tree.named(lambda name: short_name(name) == form)
    result = []
    for node in np.flatnonzero(chosen & (tree.kind == Kind.CPU_OP)).tolist():
        args = args_of(analysis.trace, int(tree.rows[node]))
        attention = _attention(analysis, node, args, form)
        if attention is None or attention.head > _LARGEST_HEAD:
            continue
        reason = _reason(args, form)
        if form == _MATH or (not reason and attention.dtype in _HALF and _has_flash(analysis)):
            result.append((attention, reason))
    return result


def _attention(analysis: Analysis, node: int, args: Args, form: str) -> Attention | None:
    tree = analysis.trace.tree
    try:
        query, key = args.shape(0), args.shape(1)
    except NotRecordedError:
        return None
    if len(query) < 3 or len(key) != len(query):
        return None
    batch = int(np.prod(query[:-2]))
    return Attention(
        first=node,
        last=node,
        start=int(tree.start[node]),
        end=int(tree.end[node]),
        thread=int(tree.thread[node]),
        batch=batch,
        queries=query[-2],
        keys=key[-2],
        head=query[-1],
        dtype=args.dtype(0),
        masked=args.text(_CAUSAL[form]) == "True" or _has_mask(args),
    )


def _has_mask(args: Args) -> bool:
    return args.is_tensor(_MASK) and len(args.shape(_MASK)) >= 2


def _reason(args: Args, form: str) -> str:
    """What keeps the faster forms away, as far as types and shapes tell; "" for nothing seen."""
    if _has_mask(args):
        return "a mask is passed"
    if args.shape(0)[-1] % 8:
        return f"the head size {args.shape(0)[-1]} is no multiple of 8"
    if form == _MATH and args.dtype(0) not in _HALF:
        return "the tensors are not in half precision"
    return ""


def _has_flash(analysis: Analysis) -> bool:
    entries = [d.compute_capability for d in analysis.trace.header.devices]
    return any(entry is not None and entry[0] >= _FLASH_CAPABILITY for entry in entries)


def _hit(
    analysis: Analysis,
    form: str,
    calls: list[tuple[Attention, str]],
    cost: tuple[FusedWork, float],
) -> Hit:
    work, share = cost
    spent = per_step_ns(analysis, work.rows)
    reasons = sorted({reason for _, reason in calls if reason})
    what = "in separate operators" if form == _MATH else "by the memory-efficient kernel"
    why = f" ({'; '.join(reasons)})" if reasons else ""
    nodes = np.array([attention.first for attention, _ in calls])
    rows = analysis.trace.tree.rows[nodes]
    each = len(calls) // max(analysis.trace.steps.count, 1)
    # The fused operator costs about a third of what the separate ones cost on the host.
    starts = np.array([a.start + (a.end - a.start) // 3 for a, _ in calls])
    host = union(starts, np.array([a.end for a, _ in calls])) if form == _MATH else empty()
    # As in CP206: the fused call's own checks may take the host as long as the operators did.
    cuts = (empty(), host, host)
    changes = [
        Change(durations=(work.keep, new), drop_calls=work.drop, host_cut=cut)
        for new, cut in zip(work.fused, cuts, strict=True)
    ]
    return Hit(
        message=(
            f"scaled_dot_product_attention runs {what}{why}: {duration(spent)} a step, "
            f"{percent(min(share, 1.0))} of the busy time."
        ),
        evidence=(
            Evidence("attention_time", spent, "ns"),
            Evidence("busy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("calls_per_step", each, "count"),
        ),
        locations=analysis.locations(
            rows, _weights(calls), calls=("scaled_dot_product_attention",)
        ),
        fix=Fix(
            summary="Give it half-precision tensors with a head size that is a multiple of 8, and "
            "is_causal in place of a mask.",
            snippet="F.scaled_dot_product_attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), "
            "is_causal=True)",
            reference=_SDPA,
        ),
        gain=analysis.gain(*(changes if form == _MATH else [Change(), *changes[1:]])),
        confidence=0.9 if form == _MATH else 0.7,
        claims=extent_of(analysis, work.rows),
    )


def _weights(calls: list[tuple[Attention, str]]) -> IntArray:
    """Scores of each call: what its place weighs."""
    return np.array([attention.scores for attention, _ in calls], dtype=np.int64)


def _attending(
    t: TraceBuilder, name: str, parts: int, dur: float, *, mask: list[int] | None = None
) -> None:
    q = [8, 16, 2_048, 64]
    half = "c10::BFloat16"
    for step in range(4):
        at = step * 8_000
        t.step(at, 7_990)
        t.op(
            f"aten::{name}",
            at + 10,
            60,
            dims=[q, q, q, mask or [], [], [], []],
            types=[half, half, half, half if mask else "", "Scalar", "Scalar", ""],
        )
        for i in range(parts):
            t.op("aten::bmm", at + 12 + 10 * i, 9)
            t.kernel("gemm", at + 80 + dur * i, dur, launch_at=at + 14 + 10 * i)
        t.op("aten::mm", at + 80, 15, dims=[[8192, 1024], [1024, 1024]])
        t.kernel("gemm", at + 80 + dur * parts, 2_000, launch_at=at + 84)
        t.sync(at + 100, 2_000 + dur * parts)


def _math(t: TraceBuilder) -> None:
    _attending(t, _MATH, 5, 900)


def _flash(t: TraceBuilder) -> None:
    _attending(t, "_scaled_dot_product_flash_attention", 1, 300)


def _masked(t: TraceBuilder) -> None:
    _attending(t, "_scaled_dot_product_cudnn_attention", 1, 3_000, mask=[2_048, 2_048])


def _padded(t: TraceBuilder) -> None:
    _attending(t, "_scaled_dot_product_cudnn_attention", 1, 3_000, mask=[8, 1, 1, 2_048])


RULE = Rule(
    code="CP207",
    name="sdpa-math-or-slow-backend",
    class_="compute",
    summary="scaled_dot_product_attention runs a slow form though a faster one could be used.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "shapes"}),
    evidence="S",
    references=(_SDPA, "https://docs.pytorch.org/docs/stable/nn.attention.html"),
    examples=(
        Example("the math form of a bfloat16 attention", _math, fires=True),
        Example("FlashAttention", _flash, fires=False),
        Example("a mask of 2048 x 2048 for 2048 queries and keys", _masked, fires=True),
        Example("a padding mask", _padded, fires=False),
    ),
)
