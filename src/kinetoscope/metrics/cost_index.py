"""Bytes of embedding, gather, scatter and other operators that look elements up."""

from __future__ import annotations

from math import prod

from kinetoscope.metrics.cost_args import Args, Cost, Formula, NotRecordedError, Op
from kinetoscope.metrics.precision import Dtype, element_size

__all__ = ["INDEX_OPS"]


def _rows(table: int, index: int, *, dim: int = -1) -> Formula:
    """Copies one slice of `table` an index: reads indices and slices, writes slices.

    dim: position of the dimension that is indexed, -1: the first.
    """

    def formula(args: Args) -> Cost:
        shape = args.shape(table)
        axis = args.ints(dim)[0] if dim >= 0 else 0
        if not shape:
            raise NotRecordedError
        n = prod(shape) // max(shape[axis % len(shape)], 1) * args.n(index)
        return Cost(0.0, float(args.bytes(index) + 2 * n * args.size(table)), args.dtype(table))

    return formula


def _index(args: Args) -> Cost:
    """x[indices]: reads indices and elements, writes elements; how many, the kernel tells."""
    row = prod(args.shape(0)[1:])
    rows, elements = args.looked_up
    n = rows * row if rows >= 0 else elements
    if n < 0:
        raise NotRecordedError
    indices = n // max(row, 1) * element_size(Dtype.INT64)
    return Cost(0.0, float(indices + 2 * n * args.size(0)), args.dtype(0))


def _gather(args: Args) -> Cost:
    """gather(x, dim, index): one element an index."""
    traffic = args.bytes(2) + 2 * args.n(2) * args.size(0)
    return Cost(0.0, float(traffic), args.dtype(0))


def _scatter(*, source: int, index: int, adds: bool) -> Formula:
    """Reads source and indices, writes the targets; adding reads them first."""

    def formula(args: Args) -> Cost:
        # Without a source tensor a scalar is scattered, one an index.
        n = args.n(source) if args.is_tensor(source) and args.shape(source) else args.n(index)
        size = args.size(0)
        read = args.bytes(source) + (args.bytes(index) if index >= 0 else 0)
        return Cost(float(n if adds else 0), float(read + (1 + adds) * n * size), args.dtype(0))

    return formula


def _index_put(args: Args) -> Cost:
    """(x, indices, values, accumulate): the indices are a list whose shapes are not recorded."""
    n, adds = args.n(2), args.text(3) == "True"
    return Cost(float(n if adds else 0), float((2 + adds) * n * args.size(0)), args.dtype(0))


def _embedding_backward(args: Args) -> Cost:
    """(grad, indices, rows, ...): reads grad and indices, writes the rows that occur.

    Clearing the gradient of the whole table is an operator of its own; sorting is not counted.
    """
    grad = args.shape(0)
    width = grad[-1] if grad else 1
    rows = min(args.n(1), args.ints(2)[0])
    traffic = args.bytes(0) + args.bytes(1) + rows * width * args.size(0)
    return Cost(float(args.n(0)), float(traffic), args.dtype(0))


def _embedding_bag(args: Args) -> Cost:
    """(table, indices, offsets, ...): reads indices and their rows, writes one row a bag."""
    width = args.matrix(0, 2)[1]
    rows = (args.n(1) + args.n(2)) * width * args.size(0)
    return Cost(float(args.n(1) * width), float(args.bytes(1) + rows), args.dtype(0))


_INDEX_ADD = Op(_scatter(source=3, index=2, adds=True))
_INDEX_SET = Op(_scatter(source=3, index=2, adds=False))
_INDEX_PUT = Op(_index_put, concrete=True)

INDEX_OPS: dict[str, Op] = {
    "aten::embedding": Op(_rows(0, 1), composite=True),
    "aten::index_select": Op(_rows(0, 2, dim=1), concrete=True),
    "aten::gather": Op(_gather),
    "aten::index": Op(_index, grid=True),
    # (x, dim, index, source)
    "aten::scatter_": Op(_scatter(source=3, index=2, adds=False)),
    "aten::scatter_add_": _INDEX_ADD,
    "aten::scatter_add": _INDEX_ADD,
    "aten::index_add_": _INDEX_ADD,
    "aten::index_add": _INDEX_ADD,
    "aten::index_copy_": _INDEX_SET,
    "aten::index_put_": _INDEX_PUT,
    "aten::_index_put_impl_": _INDEX_PUT,
    "aten::_embedding_bag": Op(_embedding_bag),
    "aten::_embedding_bag_forward_only": Op(_embedding_bag),
    "aten::embedding_dense_backward": Op(_embedding_backward, concrete=True),
}
