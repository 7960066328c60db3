"""`cat` operators that mostly move a tensor that is there already, to add a little to it.

Either a window is shifted (`cat([old[:, 1:], new], 1)`): the largest input is a part of a tensor
of the result's shape. Or a tensor grows: the largest input has the shape of another result, or the
result that of another's largest input, where it begins. A tensor that just gets a little added (a
class token in front of the patches) is neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.cost_args import Args, NotRecordedError
from kinetoscope.metrics.device_ops import DeviceOps, args_of, device_ops
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray, Trace

LEAST_MOVED = 0.9
"""Share of the result that the largest input makes up. Attention with rotary positions on a quarter
of each head joins that quarter and the rest of a tensor again; this is no window."""
_BEFORE = 8
"""Events before the `cat` in which its input may have been cut from the window."""


@dataclass(frozen=True)
class Moved:
    """Device events of such `cat` operators.

    Attributes:
        rows: event-table rows.
        new_ns: their duration when they write only what is new.
        result, new: bytes of the result, and of what is new in it.
        grows: the tensor grows; else a window is shifted.
    """

    rows: IntArray
    new_ns: IntArray
    result: IntArray
    new: IntArray
    grows: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Join:
    """Arguments of a `cat`: shapes of the largest input and of the result, share of the rest."""

    large: tuple[int, ...]
    result: tuple[int, ...]
    strides: tuple[int, ...]
    new: float


def moved_by_cat(trace: Trace) -> Moved:
    """All device events of such operators, without those that autograd goes back through."""
    work = device_ops(trace)
    which = np.flatnonzero(work.named("cat") & ~work.backward & (work.op >= 0))
    which = which[~_differentiated(trace, work.op[which])]
    joins = [(group, _join(args_of(trace, int(work.op[group[0]])))) for group in work.groups(which)]
    known = [(group, join) for group, join in joins if join and join.new <= 1 - LEAST_MOVED]
    results = {join.result for _, join in known}
    grown = {join.large for _, join in known}
    kept = []
    for group, join in known:
        # What begins to grow here was no result of a `cat` yet.
        grows = join.large in results or join.result in grown
        if grows or _cut_from_window(trace, work, group, join):
            kept.append((group, join, grows))
    return _moved(work, kept)


def _moved(work: DeviceOps, kept: list[tuple[IntArray, _Join, bool]]) -> Moved:
    none = np.empty(0, dtype=np.int64)
    at = np.concatenate([none, *(group for group, _, _ in kept)])
    share = np.concatenate([none.astype(float), *(np.full(g.size, j.new) for g, j, _ in kept)])
    size = np.concatenate([none, *(np.full(g.size, prod(j.result)) for g, j, _ in kept)])
    longer = np.concatenate([none.astype(bool), *(np.full(g.size, grows) for g, _, grows in kept)])
    order = np.argsort(at)
    at, share, size = at[order], share[order], size[order]
    new_ns = (work.ns[at] * share).astype(np.int64)
    new = (size * share).astype(np.int64)
    return Moved(work.rows[at], new_ns, size, new, longer[order])


def _join(args: Args) -> _Join | None:
    """What a `cat` joins; None when that was not recorded."""
    shapes = args.dims[0] if args.dims and isinstance(args.dims[0], list) else []
    try:
        axis = int(args.text(1) or 0)
        tensors = [tuple(int(n) for n in shape) for shape in shapes]
        large = max(range(len(tensors)), key=lambda i: prod(tensors[i]))
        result = list(tensors[large])
        result[axis] = sum(shape[axis] for shape in tensors if len(shape) == len(result))
    except (ValueError, TypeError, IndexError, NotRecordedError):
        return None
    if len(tensors) < 2 or prod(result) == 0:
        return None
    new = 1 - prod(tensors[large]) / prod(result)
    return _Join(tensors[large], tuple(result), _strides(args, large), new)


def _strides(args: Args, at: int) -> tuple[int, ...]:
    """Strides of one tensor of the list; () when they were not recorded."""
    try:
        return tuple(int(n) for n in args.strides[0][at])
    except (ValueError, TypeError, IndexError):
        return ()


def _cut_from_window(trace: Trace, work: DeviceOps, group: IntArray, join: _Join) -> bool:
    """Is the largest input a part of a tensor as large as the result?

    Its strides say so unless the first dimension was cut; then the operator that cut it does.
    """
    steps = tuple(prod(join.result[i + 1 :]) for i in range(len(join.result)))
    whole = tuple(prod(join.large[i + 1 :]) for i in range(len(join.large)))
    if join.strides == steps != whole:
        return True
    row = int(work.op[group[-1]])
    kind, name = trace.column("kind"), trace.column("name_id")
    for before in range(row - 1, max(row - 1 - _BEFORE, -1), -1):
        if kind[before] == Kind.CPU_OP and short_name(trace.names[name[before]]) in _CUTS:
            dims = args_of(trace, before).dims
            if dims and isinstance(dims[0], list) and tuple(dims[0]) == join.result:
                return True
    return False


_CUTS = frozenset({"slice", "narrow"})


def _differentiated(trace: Trace, ops: IntArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Operators whose backward ran: what they join cannot be written into a buffer."""
    forward = trace.links.forward
    nodes = forward[forward >= 0]
    return np.isin(ops, trace.tree.rows[nodes])
