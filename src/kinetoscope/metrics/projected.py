"""Products whose inputs do not change while a sequence is generated, computed for each token.

A decoder looks at something fixed (an image, a text to translate). Its keys and values follow from
that alone. Where they are projected for every token, the recording shows, in each round, the same
products of many rows among those of one row a sequence, and nothing that could make new inputs for
them: arguments tell by their sizes what an operator can have made.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from kinetoscope.metrics.cost import KernelCosts
from kinetoscope.metrics.cost_args import Args, NotRecordedError, Shape
from kinetoscope.metrics.device_ops import DeviceOps, args_of
from kinetoscope.trace.kinds import Family, Kind
from kinetoscope.trace.op_names import op_rows
from kinetoscope.trace.trace import IntArray, Trace

__all__ = ["MIN_ROUNDS", "Projected", "may_make", "projected_again"]

MIN_ROUNDS = 5
"""Tokens chosen one after another within a step; fewer may be answers to single requests."""

_MIN_POSITIONS = 8
"""Rows a sequence from which on a product is about something else than the newest token."""

_CHOICES = ("argmax", "multinomial", "topk", "max", "sort")
_ROWS = frozenset({"embedding", "index_select", "index"})
_LOOKUPS = _ROWS | {"gather", "take_along_dim"}
_NEW = frozenset(
    "normal_ uniform_ random_ bernoulli_ exponential_ native_dropout cat stack repeat_interleave "
    "index_copy_ index_put_ scatter_ masked_scatter_ upsample_nearest2d upsample_bilinear2d".split()
)
"""Operators that make something new whatever they are given, or write into a part of a tensor."""


@dataclass(frozen=True)
class Projected:
    """Work that each token repeats, of one size.

    Attributes:
        rows: of the left factor of the products.
        sequences: that are generated side by side.
        rounds: tokens chosen in a row, at most.
        events: positions among the device events, of all rounds but the first of each step.
        products: the products among them.
    """

    rows: int
    sequences: int
    rounds: int
    events: IntArray
    products: IntArray


def projected_again(costs: KernelCosts, work: DeviceOps) -> tuple[Projected, ...]:
    """All products of a trace that are repeated for each token on unchanged inputs."""
    rounds = _rounds(work)
    if rounds is None:
        return ()
    number, sequences, most = rounds
    many = (costs.batch <= 1) & (costs.m >= _MIN_POSITIONS * sequences) & (costs.op_row >= 0)
    many &= (costs.n > 1) & (costs.k > 1) & (costs.m % sequences == 0)
    at = np.searchsorted(work.rows, costs.rows[many])
    products, size = at[number[at] >= 0], costs.m[many][number[at] >= 0]
    width = costs.k[many][number[at] >= 0]
    found = []
    for rows in np.unique(size).tolist():
        mine = products[size == rows]
        if not _same_in_each(work, mine, number):
            continue
        widths = frozenset(np.unique(width[size == rows]).tolist())
        with_them = _unchanged(work, mine, number >= 0, rows, widths)
        if with_them is not None:
            found.append(Projected(rows, sequences, most, with_them, mine))
    return tuple(found)


def _rounds(work: DeviceOps) -> tuple[IntArray, int, int] | None:
    """Round of each device event (-1: none), sequences side by side, and the longest run.

    A round lies between two choices of a token in the same step; the token is looked up in it.
    """
    chosen = np.flatnonzero(work.named(*_CHOICES) & ~work.backward & (work.call >= 0))
    groups = [g for g in work.groups(chosen) if g.size >= MIN_ROUNDS]
    if not groups:
        return None
    choice = max(groups, key=lambda g: (g.size, -g[0]))
    shape = _largest(args_of(work.trace, int(work.op[choice[0]])))
    sequences = prod(shape[:-1])
    ts = work.trace.column("ts_ns")[work.op[choice]]
    lookups = _lookups(work.trace, sequences)
    count = np.diff(np.searchsorted(lookups, ts))
    step = work.trace.steps.of(ts)
    whole = (step[1:] == step[:-1]) & (step[1:] >= 0) & (count > 0)
    most = int(np.bincount(step[1:][whole]).max()) + 1 if whole.any() else 0
    if most < MIN_ROUNDS or not shape:
        return None
    at = np.searchsorted(ts, work.at, side="right") - 1
    inside = (at >= 0) & (at < whole.size)
    inside[inside] = whole[at[inside]]
    inside &= ~work.backward & (work.op >= 0)
    return np.where(inside, at, -1), sequences, most


def _lookups(trace: Trace, sequences: int) -> IntArray:
    """When the embedding of one token for each sequence was looked up, ns."""
    rows = op_rows(trace, "embedding".__eq__)
    dims = trace.column("dims_id")[rows]
    fits = {
        i: i >= 0 and _numel(args_of(trace, int(rows[dims == i][0])), 1) == sequences
        for i in np.unique(dims).tolist()
    }
    ts = trace.column("ts_ns")[rows]
    return np.asarray(ts[np.fromiter((fits[i] for i in dims.tolist()), bool, dims.size)])


def _same_in_each(work: DeviceOps, products: IntArray, number: IntArray) -> bool:
    """Are the same products, by their arguments, in every round?"""
    rounds = np.unique(number[number >= 0])
    key = work.args_key[products]
    counts = [np.bincount(key[number[products] == one], minlength=1).tolist() for one in rounds]
    trimmed = [tuple(np.trim_zeros(np.array(c), "b").tolist()) for c in counts]
    return bool(trimmed[0]) and len(set(trimmed)) == 1


def _unchanged(
    work: DeviceOps, products: IntArray, inside: np.ndarray, rows: int, widths: frozenset[int]
) -> IntArray | None:
    """Events that prepare the inputs of these products from nothing but unchanged tensors.

    None where something inside the rounds may have made a new input.
    """
    inputs = frozenset(rows * width for width in widths)
    own = np.isin(work.op, work.op[products])
    prepared = np.flatnonzero(inside & own).tolist()
    for group in work.groups(np.flatnonzero(inside & ~own)):
        args = args_of(work.trace, int(work.op[group[0]]))
        if may_make(work, group, args, inputs):
            if not _repeats(work, group, args, inputs):
                return None
            prepared += group.tolist()
    return np.sort(np.array(prepared, dtype=np.int64))


def may_make(work: DeviceOps, group: IntArray, args: Args, inputs: frozenset[int]) -> bool:
    """May the operator's result have as many elements as one of these inputs?"""
    families, name = set(work.family[group].tolist()), work.op_name(int(group[0]))
    sizes = [prod(args.shape(i)) for i in args.tensors()]
    if Family.ATTENTION in families:
        return bool(sizes) and sizes[0] in inputs
    if Family.GEMM in families:
        factors = [args.shape(i) for i in args.tensors()][-2:]
        return len(factors) == 2 and _product_size(*factors) in inputs
    if name in _LOOKUPS:
        # `gather` makes an element for each index; the others make a row.
        width = args.shape(0)[-1] if sizes and args.shape(0) and name in _ROWS else 1
        return bool(inputs & {n * width for n in sizes[1:]})
    if args.is_list(0):
        try:
            return args.list_n(0) in inputs
        except NotRecordedError:
            return True
    return bool(inputs.intersection(sizes))


def _product_size(left: Shape, right: Shape) -> int:
    return prod(left[:-1]) * right[-1] if left and right else 0


def _repeats(work: DeviceOps, group: IntArray, args: Args, inputs: frozenset[int]) -> bool:
    """Is the result the same in each round when such inputs are? Vectors are weights."""
    name = work.op_name(int(group[0]))
    if name in _LOOKUPS or name in _NEW or name.startswith(("upsample", "rand", "_rand")):
        return False
    kinds = work.trace.column("kind")[work.rows[group]]
    products = np.isin(work.family[group], (Family.GEMM, Family.ATTENTION))
    if (kinds == Kind.COPY).any() or products.any():
        return False
    shapes = (args.shape(i) for i in args.tensors())
    return all(len(shape) <= 1 or prod(shape) in inputs for shape in shapes)


def _largest(args: Args) -> Shape:
    return max((args.shape(i) for i in args.tensors()), key=prod, default=())


def _numel(args: Args, i: int) -> int:
    return prod(args.shape(i)) if args.is_tensor(i) else -1
