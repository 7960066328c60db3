"""Attention written out as separate operators: product, softmax, product.

The softmax tells: the product before it made scores of its shape, the product after it reads
them. Everything between the two (scaling, masks, casts, dropout) belongs to the attention, and so
does the backward pass of all of that, which autograd's sequence numbers tie to the forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from kinetoscope.metrics.cost_args import Args
from kinetoscope.metrics.device_ops import args_of
from kinetoscope.metrics.precision import Dtype
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray, Trace

_PRODUCTS = {"bmm": 0, "baddbmm": 1, "mm": 0}
_SOFTMAX = frozenset({"_softmax", "_safe_softmax"})
_REACH = 40
"""Operators between the softmax and its products at most; scaling, masks and casts are ten."""


@dataclass(frozen=True)
class Attention:
    """One attention of the forward pass.

    Attributes:
        first, last: call-tree nodes of the two products.
        start, end: from the start of the first product to the end of the last, ns.
        thread: host thread.
        batch: sequences times heads.
        queries, keys, head: lengths and size of a head.
        dtype: of the first product's factors.
        masked: some operator between the products masks the scores.
    """

    first: int
    last: int
    start: int
    end: int
    thread: int
    batch: int
    queries: int
    keys: int
    head: int
    dtype: Dtype
    masked: bool

    @property
    def scores(self) -> int:
        """Elements of the score matrix."""
        return self.batch * self.queries * self.keys


def written_out_attention(trace: Trace) -> tuple[Attention, ...]:
    """All attentions of the forward pass that no fused operator computes, in tree order."""
    tree = trace.tree
    short = [short_name(name) for name in trace.names]
    name_id = trace.column("name_id")[tree.rows]
    is_op = tree.kind == Kind.CPU_OP
    leaf_names = np.array([s in _PRODUCTS or s in _SOFTMAX or s in _MASKS for s in short], bool)
    if not leaf_names.size or not any(s in _SOFTMAX for s in short):
        return ()
    fused = np.array([s.startswith(_FUSED) for s in short], dtype=bool)
    inside = nearest(is_op & fused[name_id], tree.parent) >= 0
    chosen = np.flatnonzero(is_op & leaf_names[name_id] & ~inside & (trace.links.backward_root < 0))
    finder = _Finder(trace, chosen, [short[i] for i in name_id[chosen]])
    return tuple(found for found in map(finder.around, range(chosen.size)) if found is not None)


_MASKS = frozenset({"masked_fill", "masked_fill_", "where", "tril", "triu"})
_FUSED = ("scaled_dot_product_attention", "_scaled_dot_product", "_native_multi_head_attention")


class _Finder:
    """Looks for the products around a softmax among the operators that matter."""

    def __init__(self, trace: Trace, nodes: IntArray, names: list[str]) -> None:
        self._trace, self._nodes, self._names = trace, nodes, names
        step = np.searchsorted(trace.steps.edges, trace.tree.start[nodes], side="right")
        self._lane = list(zip(trace.tree.thread[nodes].tolist(), step.tolist(), strict=True))
        self._cache: dict[tuple[int, int, int], Args] = {}

    def _args(self, at: int) -> Args:
        row = int(self._trace.tree.rows[self._nodes[at]])
        columns = ("dims_id", "types_id", "strides_id")
        key = tuple(int(self._trace.column(c)[row]) for c in columns)
        found = self._cache.get(key)  # type: ignore[arg-type]
        if found is None:
            found = self._cache[key] = args_of(self._trace, row)  # type: ignore[index]
        return found

    def around(self, at: int) -> Attention | None:
        """The attention of the softmax at this position; None if it is another softmax."""
        if self._names[at] not in _SOFTMAX:
            return None
        args = self._args(at)
        shape = args.dims[0] if args.dims else []
        if not _is_scores(shape):
            return None
        first = self._product(at, -1, shape)
        last = self._product(at, +1, shape)
        if first is None or last is None:
            return None
        return self._build(first, last, shape)

    def _product(self, at: int, direction: int, shape: list[int]) -> int | None:
        """The nearest product whose result (before) or left factor (after) is the scores."""
        for distance in range(1, _REACH):
            i = at + direction * distance
            if not 0 <= i < self._nodes.size or self._lane[i] != self._lane[at]:
                return None
            if self._names[i] in _SOFTMAX:
                return None
            if self._names[i] not in _PRODUCTS:
                continue
            factors = self._factors(i)
            if factors is None:
                continue
            left, right = factors
            made = [*left[:-1], right[-1]] if direction < 0 else left
            if made[-1] == shape[-1] and prod(made) == prod(shape):
                return i
            return None
        return None

    def _factors(self, at: int) -> tuple[list[int], list[int]] | None:
        args, first = self._args(at), _PRODUCTS[self._names[at]]
        if not (args.is_tensor(first) and args.is_tensor(first + 1)):
            return None
        left, right = args.dims[first], args.dims[first + 1]
        return (left, right) if len(left) >= 2 and len(right) >= 2 else None

    def _build(self, first: int, last: int, shape: list[int]) -> Attention | None:
        tree = self._trace.tree
        factors = self._factors(first)
        # With heads as large as the sequence is long, the scores are not what costs.
        if factors is None or factors[0][-1] >= shape[-1]:
            return None
        start, end = self._nodes[first], self._nodes[last]
        position = _PRODUCTS[self._names[first]]
        return Attention(
            first=int(start),
            last=int(end),
            start=int(tree.start[start]),
            end=int(tree.end[end]),
            thread=int(tree.thread[start]),
            batch=prod(shape[:-2]),
            queries=shape[-2],
            keys=shape[-1],
            head=factors[0][-1],
            dtype=self._args(first).dtype(position),
            masked=any(name in _MASKS for name in self._names[first : last + 1]),
        )


def _is_scores(shape: object) -> bool:
    return isinstance(shape, list) and len(shape) >= 2 and all(type(n) is int for n in shape)


__all__ = ["Attention", "written_out_attention"]
