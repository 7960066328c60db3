"""Fused attention through a mask as large as its scores: what it hides is computed all the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.attention import Attention
from kinetoscope.metrics.cost_args import Args, NotRecordedError, broadcast
from kinetoscope.metrics.device_ops import args_of
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Hit
from kinetoscope.rules.compute._attention import Rates, fused_work
from kinetoscope.rules.compute._kernels import busy_share, extent_of, per_step_ns
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration, percent

_FORMS = ("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention")
"""The forms that take a mask; FlashAttention takes none."""
_BACKWARD = "_scaled_dot_product_efficient_attention_backward"
_MASK, _WANTED = 3, 10
"""Positions of the mask, and in the backward pass of the list of wanted gradients."""
_TRIANGLES = ("triu", "tril", "triu_", "tril_")
_ORDERS = ("le", "ge", "lt", "gt", "less_equal", "greater_equal", "less", "greater")
_SHORTEST = 256
"""Below, the blocks of 128 queries and keys that could be skipped are few."""
_BLOCK = 128


@dataclass(frozen=True)
class _Masked:
    """Calls of one size through such a mask, and whether it is seen to be a triangle."""

    calls: tuple[Attention, ...]
    length: int
    causal: bool


def through_dense_masks(analysis: Analysis, min_share: float, left: Rates) -> list[Hit]:
    """Calls whose mask may be the causal one, replayed with the hidden half skipped.

    Args:
        analysis: the recording.
        min_share: share of the busy time that they take at least.
        left: time of a block without a mask over that with one, at worst, likely, at best.
    """
    groups = _groups(analysis)
    if not groups or _learned(analysis):
        return []
    rows, new = [], []
    for group in groups:
        work = fused_work(analysis, left, group.calls)
        # Of n blocks a side, the n (n + 1) / 2 on and below the diagonal stay.
        kept = (1 + _BLOCK / group.length) / 2
        ns = analysis.trace.column("dur_ns")[work.rows]
        rows.append(work.rows)
        new.append(np.stack([ns * min(kept * part, 1.0) for part in left]))
    where = np.concatenate(rows)
    if where.size == 0 or busy_share(analysis, where) < min_share:
        return []
    times = np.concatenate(new, axis=1).astype(np.int64)
    return [_hit(analysis, groups, where, [Change(durations=(where, one)) for one in times])]


def _hit(analysis: Analysis, groups: list[_Masked], rows: IntArray, changes: list[Change]) -> Hit:
    causal = all(group.causal for group in groups)
    length = max(group.length for group in groups)
    calls = [call for group in groups for call in group.calls]
    share, spent = busy_share(analysis, rows), per_step_ns(analysis, rows)
    why = "a triangle: the causal mask" if causal else "the causal mask, if it is a triangle"
    return Hit(
        message=(
            f"scaled_dot_product_attention reads a mask of {count(length)} x {count(length)}, "
            f"{why}. What it hides is computed all the same: {duration(spent)} a step, "
            f"{percent(min(share, 1.0))} of the busy time."
        ),
        evidence=(
            Evidence("attention_time", spent, "ns"),
            Evidence("busy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("length", length, "count"),
        ),
        locations=analysis.locations(
            analysis.trace.tree.rows[[call.first for call in calls]],
            np.array([call.scores for call in calls], dtype=np.int64),
            calls=("scaled_dot_product_attention",),
        ),
        fix=_FIX,
        gain=analysis.gain(*(changes if causal else [Change(), *changes[1:]])),
        confidence=0.9 if causal else 0.4,
        claims=extent_of(analysis, rows),
        at_most="critical" if causal else "medium",
    )


_FIX = Fix(
    summary="Say is_causal=True in place of the causal mask; other masks that hide much (windows, "
    "documents) belong into FlexAttention, which skips what they hide.",
    snippet="F.scaled_dot_product_attention(q, k, v, is_causal=True)",
    reference="https://docs.pytorch.org/docs/stable/generated/"
    "torch.nn.functional.scaled_dot_product_attention.html",
)


def _groups(analysis: Analysis) -> list[_Masked]:
    """Calls by length, where queries and keys are as many and a mask has an entry for each pair."""
    trace, tree = analysis.trace, analysis.trace.tree
    forms = tree.named(lambda name: short_name(name) in _FORMS) & (tree.kind == Kind.CPU_OP)
    calls: dict[int, list[Attention]] = {}
    for node in np.flatnonzero(forms).tolist():
        call = _call(analysis, node, args_of(trace, int(tree.rows[node])))
        if call is not None:
            calls.setdefault(call.queries, []).append(call)
    triangles = _triangles(analysis) if calls else set()
    return [_Masked(tuple(found), n, n in triangles) for n, found in sorted(calls.items())]


def _call(analysis: Analysis, node: int, args: Args) -> Attention | None:
    try:
        query, key, mask = args.shape(0), args.shape(1), args.shape(_MASK)
        stored = args.stored(_MASK)
    except (NotRecordedError, IndexError):
        return None
    length = query[-2] if len(query) == 4 else 0
    # A padding mask is one row a sequence. One matrix a head is a bias, which hides nothing.
    dense = mask[-2:] == (length, length) and stored in (length**2, query[0] * length**2)
    if length < _SHORTEST or len(key) != 4 or key[-2] != length or not dense:
        return None
    tree = analysis.trace.tree
    return Attention(
        first=node,
        last=node,
        start=int(tree.start[node]),
        end=int(tree.end[node]),
        thread=int(tree.thread[node]),
        batch=query[0] * query[1],
        queries=length,
        keys=length,
        head=query[-1],
        dtype=args.dtype(0),
        masked=True,
    )


def _triangles(analysis: Analysis) -> set[int]:
    """Sides of square matrices of which a triangle was taken, or that compare each position of a
    row with each of a column."""
    trace, tree = analysis.trace, analysis.trace.tree
    sides = set()
    chosen = tree.named(lambda name: short_name(name) in _TRIANGLES + _ORDERS)
    for node in np.flatnonzero(chosen & (tree.kind == Kind.CPU_OP)).tolist():
        row = int(tree.rows[node])
        dims = [shape for shape in args_of(trace, row).dims[:2] if isinstance(shape, list)]
        if short_name(trace.names[trace.column("name_id")[row]]) in _TRIANGLES:
            sides.add(_square(dims[:1]))
        elif len(dims) > 1 and dims[0] != dims[1]:
            sides.add(_square(dims))
    return sides


def _square(shapes: list[Any]) -> int:
    """Side of the square matrix to which shapes broadcast; -1 where it is none, or one gives it."""
    try:
        sizes = broadcast(*(tuple(shape) for shape in shapes))[-2:]
    except TypeError:
        return -1
    whole = len(shapes) > 1 and any(tuple(shape[-2:]) == sizes for shape in shapes)
    return sizes[0] if len(sizes) == 2 and sizes[0] == sizes[1] and not whole else -1


def _learned(analysis: Analysis) -> bool:
    """Is a gradient of the mask wanted? Then it is a bias that is learned."""
    trace, tree = analysis.trace, analysis.trace.tree
    nodes = np.flatnonzero(tree.named(lambda name: short_name(name) == _BACKWARD))
    flags = (args_of(trace, int(tree.rows[node])).flags(_WANTED) for node in nodes.tolist())
    return any(len(wanted) > _MASK and wanted[_MASK] for wanted in flags)
