"""Sequences that are computed anew as a whole each time they have become a little longer.

The products with a model's weights tell: the rows of the left factor grow by the same number from
one round to the next, where a cache of keys and values would leave only what is new.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np

from kinetoscope.metrics.cost import KernelCosts
from kinetoscope.metrics.device_ops import DeviceOps, args_of, dense
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray, Trace

MIN_ROUNDS = 5
"""Rounds of equal growth; batches that were sorted by length rarely differ so regularly."""

_MOST_GROWTH = 0.25
"""Part of the rows that a round adds at most; a growing batch or a curriculum adds more."""

_MOST_PRODUCTS = 0.6
"""Time of the growing products as a part of all, at least: where keys and values are expanded from
a smaller cache, some products grow rightly."""

_CHOICES = frozenset({"argmax", "multinomial", "topk", "max", "sort", "argsort", "bernoulli"})


@dataclass(frozen=True)
class Regrowth:
    """One sequence (or a batch of them) that grows.

    Attributes:
        starts: launch of the first growing product of each round, ns.
        end: end of the last one, ns.
        sizes: rows of the left factor in each round.
        added: rows that each round adds.
        first, last: rows of the operators of the first and of the last growing product.
        joined: a `cat` in every round makes the sequence longer; otherwise an element is chosen.
    """

    starts: IntArray
    end: int
    sizes: IntArray
    added: int
    first: int
    last: int
    joined: bool

    @property
    def sequences(self) -> int:
        """Sequences that grow side by side, as far as the numbers tell."""
        return gcd(int(self.sizes[0]), self.added)

    def lengths(self, at: int) -> frozenset[int]:
        """Sizes of dimensions that stand for all positions in one round and the next."""
        sizes = self.sizes[at : at + 2].tolist()
        return frozenset(sizes) | {size // self.sequences for size in sizes}


def regrowths(costs: KernelCosts, work: DeviceOps) -> tuple[Regrowth, ...]:
    """All sequences of a trace that are computed again as they grow, in time order."""
    weights = np.flatnonzero((costs.batch == 1) & (costs.m > 1) & (costs.n > 1) & (costs.k > 1))
    if weights.size < MIN_ROUNDS:
        return ()
    found: list[Regrowth] = []
    for rounds in sorted(_runs(costs, weights), key=lambda run: (-run.size, run[0])):
        one = _regrowth(costs, work, rounds)
        if one is not None and not any(one.first <= o.last and o.first <= one.last for o in found):
            found.append(one)
    return tuple(sorted(found, key=lambda one: one.first))


def _runs(costs: KernelCosts, weights: IntArray) -> list[IntArray]:
    """Positions in `costs` of the first product of each round, for every run of equal growth."""
    key = dense([costs.n[weights], costs.k[weights]])
    order = np.lexsort((weights, key))
    at, key = weights[order], key[order]
    change = np.append(True, (np.diff(key) != 0) | (np.diff(costs.m[at]) != 0))
    at, key, size = at[change], key[change], costs.m[at][change]
    step = np.append(0, np.diff(size))
    grows = np.append(False, np.diff(key) == 0) & (step > 0)
    grows[1:] &= step[1:] <= _MOST_GROWTH * size[:-1]
    same = np.append(False, grows[1:] & grows[:-1] & (np.diff(step) == 0))
    begin = np.flatnonzero(grows & ~same)
    runs = []
    for first in begin.tolist():
        last = first
        while last + 1 < same.size and same[last + 1]:
            last += 1
        if last - first + 2 >= MIN_ROUNDS:
            runs.append(at[first - 1 : last + 1])
    return runs


def _regrowth(costs: KernelCosts, work: DeviceOps, rounds: IntArray) -> Regrowth | None:
    """The sequence of these rounds; None when other products matter more or nothing feeds back."""
    trace = work.trace
    sizes = costs.m[rounds]
    ts, dur = trace.column("ts_ns"), trace.column("dur_ns")
    first = int(costs.op_row[rounds[0]])
    starts = ts[costs.op_row[rounds]]
    last = _last(trace, costs, rounds, int(2 * starts[-1] - starts[-2]))
    end = int(ts[last] + dur[last])
    inside = (costs.op_row >= first) & (costs.op_row <= last) & (costs.m > 0) & (costs.batch == 1)
    took = dur[costs.rows]
    growing = inside & np.isin(costs.m, sizes)
    if took[growing].sum() < _MOST_PRODUCTS * took[inside].sum():
        return None
    if work.backward[(work.at >= starts[0]) & (work.at <= end)].any():
        return None
    joined = _each_round(_joins(trace, first, last, sizes), starts)
    if not joined and not _each_round(_named(trace, first, last, _CHOICES), starts):
        return None
    return Regrowth(starts, end, sizes, int(sizes[1] - sizes[0]), first, last, joined)


def _last(trace: Trace, costs: KernelCosts, rounds: IntArray, until: int) -> int:
    """Row of the last growing product: the last round takes about as long as the one before."""
    ops = costs.op_row[(costs.m == costs.m[rounds[-1]]) & (costs.op_row >= 0)]
    ops = ops[trace.column("ts_ns")[ops] < until]
    return int(ops.max())


def _each_round(ts: IntArray, starts: IntArray) -> bool:
    """Does one of these moments lie in each round but the last?"""
    counts = np.bincount(np.searchsorted(starts, ts, side="right"), minlength=starts.size + 1)
    return bool((counts[1 : starts.size] > 0).all())


def _named(trace: Trace, first: int, last: int, names: frozenset[str]) -> IntArray:
    """Starts of the operators of these names between two rows."""
    rows = _rows_named(trace, first, last, names)
    return np.asarray(trace.column("ts_ns")[rows])


def _rows_named(trace: Trace, first: int, last: int, names: frozenset[str]) -> IntArray:
    flags = trace.name_flags(lambda n: short_name(n) in names)
    part = slice(first, last + 1)
    hit = flags[trace.column("name_id")[part]]
    return first + np.flatnonzero(hit & (trace.column("kind")[part] == Kind.CPU_OP))


def _joins(trace: Trace, first: int, last: int, sizes: IntArray) -> IntArray:
    """Starts of the `cat` operators that make something with all positions longer."""
    sequences = gcd(int(sizes[0]), int(sizes[1] - sizes[0]))
    lengths = {int(size) // sequences for size in sizes} | set(sizes.tolist())
    added = {int(sizes[1] - sizes[0]), int(sizes[1] - sizes[0]) // sequences}
    found = []
    for row in _rows_named(trace, first, last, frozenset({"cat"})).tolist():
        dims = args_of(trace, row).dims
        parts = dims[0] if dims and isinstance(dims[0], list) else []
        shapes = [p for p in parts if isinstance(p, list)]
        if len(shapes) == len(parts) == 2:
            pair = zip(*shapes, strict=False)
            if any(long in lengths and short in added for long, short in pair if long != short):
                found.append(row)
    return np.asarray(trace.column("ts_ns")[np.array(found, dtype=np.int64)])
