"""Rows that are gathered, scaled and added up again: products with a sparse matrix, written out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.cost_args import Args, NotRecordedError, Shape
from kinetoscope.metrics.cost_kernels import lookups
from kinetoscope.metrics.device_ops import DeviceOps, args_of
from kinetoscope.metrics.ownership import TO_DEVICE
from kinetoscope.metrics.precision import Dtype, element_size
from kinetoscope.replay import Change
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray

FloatArray = npt.NDArray[np.float64]

_REACH = 12
"""Device events before a sum among which its gather lies: scaling, and clearing the result."""
_SOURCES = {
    "index_add_": 3, "index_add": 3, "scatter_add_": 3, "scatter_add": 3,
    "index_put_": 2, "_index_put_impl_": 2,
}  # fmt: skip
"""Position of the rows among the arguments of operators that add them to where an index says."""
_INDICES = {"index_select": 2, "embedding": 1, "gather": 2}
"""Position of the index among the arguments of operators that gather."""
_BLOCK = 1024
"""Elements by which a grid may be larger than what it works on."""


@dataclass(frozen=True)
class SparseProduct:
    """One gather with the sum that follows it.

    Attributes:
        gone: positions of the device events of gather and scaling.
        sums: positions of those of the sum.
        links, width: rows that are gathered, and elements of each.
        backward: part of a backward pass, where the matrix is the transpose of the forward one.
        moved_bytes: what one sparse product moves: rows and indices read, the result written.
    """

    gone: tuple[int, ...]
    sums: tuple[int, ...]
    links: int
    width: int
    backward: bool
    moved_bytes: int

    def later(self, events: int) -> SparseProduct:
        """The same, so many device events later."""
        gone, sums = (tuple(i + events for i in part) for part in (self.gone, self.sums))
        return replace(self, gone=gone, sums=sums)


def sparse_products(analysis: Analysis, work: DeviceOps) -> list[SparseProduct]:
    """Sums over rows that were gathered before and not used by anything but a scaling.

    A product with a matrix of weights, one a link, is `(x[i] * w[:, None])` added up by target.
    Rows that meet other rows of the same shape before they are added up are no such product.
    """
    chosen = np.flatnonzero(work.by_op_name(_SOURCES.__contains__) & (work.op >= 0))
    launch = analysis.trace.column("launch_id")[work.rows].astype(np.int64)
    seen: dict[bytes, SparseProduct | None] = {}
    found = []
    for sums in np.split(chosen, np.flatnonzero(np.diff(work.op[chosen])) + 1):
        if not sums.size:
            continue
        before = slice(max(int(sums[0]) - _REACH, 0), int(sums[-1]) + 1)
        passes = work.backward[before].astype(np.int64)
        alike = np.stack(
            [work.args_key[before], work.stream[before], launch[before], passes]
        ).tobytes()
        if alike not in seen:
            seen[alike] = _product(analysis, work, sums)
        product = seen[alike]
        if product is not None:
            moved = int(sums[0]) - product.sums[0]
            found.append(product.later(moved))
    return found


_LINK_BYTES = (4, 8, 16)
"""Bytes of a link on its way to the device: 32 or 64 bits for one end, or 64 for both."""


def links_change(analysis: Analysis, products: list[SparseProduct]) -> bool:
    """Are there other links in each step, so that a matrix of them cannot be made once?

    Then their number differs from step to step, or they come from the host in each.
    """
    numbers = {product.links for product in products}
    if len(numbers) > -(-len(products) // analysis.steps):
        return True
    column = analysis.trace.column
    rows = analysis.in_window(analysis.rows(Kind.COPY))
    rows = rows[np.isin(column("copy_kind")[rows], TO_DEVICE)]
    sizes = [links * each for links in numbers for each in _LINK_BYTES]
    return int(np.isin(column("bytes")[rows], sizes).sum()) >= analysis.steps


def _product(analysis: Analysis, work: DeviceOps, sums: IntArray) -> SparseProduct | None:
    try:
        return _sum_of(analysis, work, sums)
    except (NotRecordedError, IndexError):
        return None


def _sum_of(analysis: Analysis, work: DeviceOps, sums: IntArray) -> SparseProduct | None:
    first = int(sums[0])
    name = work.op_name(first)
    args = args_of(analysis.trace, int(work.op[first]))
    rows, result = args.matrix(_SOURCES[name], 2), args.matrix(0, 2)
    adds = args.text(3) == "True" if "put" in name else args.ints(1)[0] == 0
    # An optimizer that adds looked-up rows to its table has other rows in every step.
    if not adds or rows[1] != result[1] or rows[1] < 2 or work.optimizer[first]:
        return None
    gone = _gathered(analysis, work, first, rows)
    if gone is None:
        return None
    size = args.size(0)
    each = rows[1] * size + element_size(Dtype.INT64) + size
    moved = rows[0] * each + result[0] * result[1] * size
    return SparseProduct(
        gone, tuple(sums.tolist()), rows[0], rows[1], bool(work.backward[first]), moved
    )


def _gathered(
    analysis: Analysis, work: DeviceOps, sum_: int, rows: Shape
) -> tuple[int, ...] | None:
    """Events of scaling and of the gather before a sum; None where anything else has the rows."""
    gone: list[int] = []
    for i in range(sum_ - 1, max(sum_ - _REACH, 0) - 1, -1):
        if work.op[i] < 0 or work.stream[i] != work.stream[sum_]:
            continue
        if work.backward[i] != work.backward[sum_]:
            return None
        args, name = args_of(analysis.trace, int(work.op[i])), work.op_name(i)
        if _is_gather(analysis, work, i, args, rows):
            return (*gone, i)
        shapes = [args.shape(k) for k in args.tensors()]
        if rows not in shapes:
            continue
        if name not in ("mul", "mul_") or not _scales(shapes, rows):
            return None
        gone.append(i)
    return None


def _scales(shapes: list[Shape], rows: Shape) -> bool:
    """Are these rows and one factor a row, or one for all?"""
    other = [shape for shape in shapes if shape != rows]
    return shapes.count(rows) == 1 and all(
        shape in ((rows[0], 1), ()) or set(shape) == {1} for shape in other
    )


def _is_gather(analysis: Analysis, work: DeviceOps, i: int, args: Args, rows: Shape) -> bool:
    """Does this event gather such rows out of a table?"""
    name = work.op_name(i)
    if name not in _INDICES and name != "index":
        return False
    table = args.shape(0)
    if len(table) != 2 or table[1] != rows[1]:
        return False
    if name != "index":
        index = args.shape(_INDICES[name])
        return index in ((rows[0],), rows)
    column = analysis.trace.column
    row = work.rows[i]
    launch = int(column("launch_id")[row])
    count, elements = lookups(
        analysis.trace.names[column("name_id")[row]],
        analysis.trace.texts[launch] if launch >= 0 else "",
    )
    return count == rows[0] or 0 <= elements - rows[0] * rows[1] < _BLOCK


def multiplied(work: DeviceOps, products: list[SparseProduct], ns: FloatArray) -> Change:
    """The program with sparse products, which take these times, one each."""
    gone = np.array([i for p in products for i in (*p.gone, *p.sums[1:])], dtype=np.int64)
    calls = np.unique(work.call[gone])
    sums = work.rows[[product.sums[0] for product in products]]
    return Change(drop_calls=calls[calls >= 0], durations=(sums, ns.astype(np.int64)))
