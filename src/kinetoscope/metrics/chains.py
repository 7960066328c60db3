"""Chains of pointwise kernels that one fused kernel could replace.

Consecutive kernels of a stream, launched by pointwise operators, casts, forward norms, softmax
or reductions over the same number of elements. A product, a copy from elsewhere, a kernel of a
compiler or an optimizer ends a chain.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.cost_args import Args
from kinetoscope.metrics.device_ops import DeviceOps, args_of, largest_tensor
from kinetoscope.trace.kinds import CopyKind, Family, Kind
from kinetoscope.trace.op_names import op_family
from kinetoscope.trace.trace import IntArray, Trace

_FUSABLE = (Family.ELEMENTWISE, Family.NORM, Family.SOFTMAX, Family.REDUCTION, Family.COPY)
_NOT_FUSABLE = frozenset(
    "cat stack pad constant_pad_nd repeat nll_loss_forward nll_loss_backward cumsum argmax argmin "
    "any all native_layer_norm_backward native_batch_norm_backward native_group_norm_backward "
    "cudnn_batch_norm_backward batch_norm_backward miopen_batch_norm sort topk fill_ zero_ "
    "cudnn_batch_norm native_batch_norm _copy_from".split()
)
_MOVES = frozenset({"roll", "flip", "rot90", "constant_pad_nd", "repeat", "fill_", "zero_"})
_POINTWISE_INDEX = frozenset({"masked_fill_", "masked_fill", "where", "native_dropout"})


@dataclass(frozen=True)
class Chains:
    """All chains of a trace.

    Attributes:
        work: the device events.
        members: positions in `work`, chain after chain.
        chain: number of the chain of each member.
        numel: elements that each chain works on.
    """

    work: DeviceOps
    members: IntArray
    chain: IntArray
    numel: IntArray

    @property
    def count(self) -> int:
        """Number of chains."""
        return int(self.numel.size)

    def longest_ns(self) -> IntArray:
        """Longest kernel of each chain: what reading and writing the data once takes.

        One that only moves elements may read them in a bad order, so those count in no chain with
        others.
        """
        moves = self.work.named(*_MOVES)[self.members]
        result = np.zeros((2, self.count), dtype=np.int64)
        np.maximum.at(result, (moves.astype(np.int64), self.chain), self.work.ns[self.members])
        return np.asarray(np.where(result[0] > 0, result[0], result[1]), dtype=np.int64)

    def total_ns(self) -> IntArray:
        """Time of each chain's kernels together."""
        return np.bincount(
            self.chain, weights=self.work.ns[self.members], minlength=self.count
        ).astype(np.int64)


MIN_LENGTH = 3
"""Shorter chains are not worth a compiler."""


def pointwise_chains(work: DeviceOps, *, moves: bool = False) -> Chains:
    """Find the chains, in launch order on each stream.

    Args:
        work: the device events.
        moves: operators that only move elements (`roll`, `flip`, padding) are part of a chain, as
            they are of a compiler's kernel: it computes where to read.
    """
    trace = work.trace
    fusable, numel = _fusable(trace, work, moves=moves)
    order = np.lexsort((np.arange(work.rows.size), work.stream))
    ok, lane, back = fusable[order], work.stream[order], work.backward[order]
    at = np.where(work.call >= 0, trace.column("ts_ns")[np.maximum(work.call, 0)], -1)
    step = np.searchsorted(trace.steps.edges, at, side="right")[order]
    overwrites, key = _overwrites(work, np.flatnonzero(fusable)), work.args_key[order]
    near = ok[1:] & ok[:-1] & (lane[1:] == lane[:-1]) & (back[1:] == back[:-1])
    near &= step[1:] == step[:-1]
    near &= ~((key[1:] == key[:-1]) & overwrites[order][1:])
    size = _through_statistics(numel[order], near)
    same = near & (size[1:] == size[:-1])
    number = np.concatenate(([0], np.cumsum(~same))) if order.size else order
    length = np.bincount(number, minlength=1)
    chosen = ok & (length[number] >= MIN_LENGTH) if order.size else ok
    kept, dense = np.unique(number[chosen], return_inverse=True)
    first = np.searchsorted(number, kept, side="left")
    return Chains(work, order[chosen], dense.astype(np.int64), size[first].astype(np.int64))


_STATISTIC = 8
"""A tensor this many times smaller than the one before holds statistics of it (mean, variance)."""


def _through_statistics(size: IntArray, near: npt.NDArray[np.bool_]) -> IntArray:
    """Sizes in which operators on statistics count as operators on the tensor they belong to.

    A norm written by hand is a square, a mean, two operators on the means, and a product.
    """
    if size.size == 0:
        return size
    linked = np.append(False, near)
    recent = size.copy()
    run = linked.copy()
    for back in (1, 2, 3):
        earlier = np.concatenate((np.zeros(back, dtype=np.int64), size[:-back]))[: size.size]
        recent = np.where(run, np.maximum(recent, earlier), recent)
        run = run & np.concatenate((np.zeros(back, dtype=bool), linked[:-back]))[: size.size]
    small = size * _STATISTIC <= recent
    last = np.maximum.accumulate(np.where(small, 0, np.arange(size.size)))
    return size[last]


def _fusable(
    trace: Trace, work: DeviceOps, *, moves: bool
) -> tuple[npt.NDArray[np.bool_], IntArray]:
    """Which events may be part of a chain, and on how many elements they work."""
    kernel = trace.column("kind")[work.rows] == Kind.KERNEL
    kernel |= trace.column("copy_kind")[work.rows] == CopyKind.D2D
    kernel &= ~work.optimizer & (work.op >= 0) & (work.family != Family.FUSED)
    named = work.by_op_name(lambda name: _by_name(name) or (moves and name in _MOVES))
    candidate = np.flatnonzero(kernel & named)
    numel = np.zeros(work.rows.size, dtype=np.int64)
    for group in work.groups(candidate):
        numel[group] = prod(largest_tensor(args_of(trace, int(work.op[group[0]]))) or (0,))
    fusable = np.zeros(work.rows.size, dtype=bool)
    fusable[candidate] = numel[candidate] > 1
    return fusable, numel


_ACCUMULATES = frozenset({"add_", "sub_", "addcmul_", "addcdiv_"})


def _overwrites(work: DeviceOps, which: IntArray) -> npt.NDArray[np.bool_]:
    """Operators that write their result into a tensor which is there already, `out=` included.

    The same one twice in a row does the same to two tensors (weights of a model, averaged one by
    one): nothing passes from one to the other, and no kernel can save a pass over the data. Sums
    that are built up in place are the exception.
    """
    result = np.zeros(work.rows.size, dtype=bool)
    for group in work.groups(which):
        name = work.op_name(int(group[0]))
        result[group] = name not in _ACCUMULATES and (
            name.endswith("_") or _has_out(args_of(work.trace, int(work.op[group[0]])))
        )
    return result


def _has_out(args: Args) -> bool:
    """Is the last argument a tensor of the full size that follows a number? Only `out=` does."""
    last = len(args.dims) - 1
    if last < 2 or not args.is_tensor(last) or args.is_tensor(last - 1):
        return False
    return args.shape(last) == largest_tensor(args)


def _by_name(name: str) -> bool:
    if name in _NOT_FUSABLE or not name:
        return False
    return name in _POINTWISE_INDEX or op_family(name) in _FUSABLE


__all__ = ["MIN_LENGTH", "Chains", "pointwise_chains"]
