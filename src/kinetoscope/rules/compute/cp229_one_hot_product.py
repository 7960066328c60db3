"""Rows of a table are picked by a product with a one-hot matrix.

## What it finds
Matrix products whose left factor was made by `one_hot` (or by `scatter_` of a constant into
zeros): one element in each row is not zero.

## Why it matters
A lookup reads one row of the table for each index. The product reads and multiplies a matrix with
a column for each class, nearly all of it zeros, and so does its backward pass. Before that the
matrix is laid out as int64, eight bytes an element, and cast: for many classes that takes longer
than the product.

## How to fix it
Use the index itself: `F.embedding(ids, table)`, or `table[ids]`; a linear layer on one-hot rows is
`nn.Embedding` and a bias. A transposed one-hot matrix times rows adds them up by class:
`out.index_add_(0, ids, rows)`. Gradients reach the table either way.

## Limits
A one-hot matrix that comes from a comparison with all classes is not recognised. Where the matrix
serves something else as well (a mean over it), only the products count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import DeviceOps, args_of
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules._inside import host_with_callers
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import (
    busy_share,
    device_work,
    extent_of,
    per_step_ns,
    places,
    positions,
    shrunk,
)
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_EMBEDDING = "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.embedding.html"
_MAKING = frozenset({"scatter_", "zero_", "fill_", "zeros", "copy_", "_to_copy", "to"})
_SCATTER_ARGS = 4
"""`scatter_(self, dim, index, value)`."""


class Thresholds(Options, frozen=True):
    """When such products are worth a word, and what a lookup takes."""

    min_share: float = 0.05
    """Share of the busy time in the products and in making their factors."""
    reached: tuple[float, float, float] = (0.2, 0.4, 0.7)
    """Share of the memory's bandwidth at which rows are looked up or added up."""
    sort_ns: tuple[int, int, int] = (150_000, 80_000, 40_000)
    """Time of a sum by class beyond its traffic, on the device and as much on the host: the
    backward pass of a lookup sorts the indices in some ten small kernels."""


@dataclass(frozen=True)
class _OneHot:
    """One-hot matrices of one size, and the products with them.

    Attributes:
        rows, classes: their shape.
        products: positions of the products among the device events.
        summed: which of the products add rows up by class.
        width: columns of each product's other factor.
        made: positions of the events that make the matrices; empty where something else needs
            them as well.
    """

    rows: int
    classes: int
    products: IntArray
    summed: np.ndarray
    width: IntArray
    made: IntArray


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Replay with lookups in place of the products, and without the matrices."""
    work = device_work(analysis)
    found = [one for one in _found(analysis, work) if one.products.size]
    if not found:
        return
    parts = [part for one in found for part in (one.products, one.made)]
    rows = work.rows[np.sort(np.concatenate(parts))]
    share = busy_share(analysis, rows)
    if share < options.min_share:
        return
    spent = per_step_ns(analysis, rows)
    largest = max(found, key=lambda one: one.rows * one.classes)
    yield Hit(
        message=(
            f"Rows are picked by products with one-hot matrices of up to {count(largest.rows)} x "
            f"{count(largest.classes)}: {duration(spent)} a step, {percent(min(share, 1.0))} of "
            f"the device's busy time. One element in {count(largest.classes)} is not zero."
        ),
        evidence=(
            Evidence("one_hot_time", spent, "ns"),
            Evidence("busy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("classes", largest.classes, "count"),
        ),
        locations=places(analysis, rows, calls=("one_hot", "scatter_", "matmul", "linear")),
        fix=Fix(
            summary="Look the rows up by their index instead of multiplying one-hot rows.",
            snippet="rows = F.embedding(ids, table)   # F.one_hot(ids, n).to(table.dtype) @ table",
            reference=_EMBEDDING,
        ),
        gain=analysis.gain(*_changes(analysis, work, found, options)),
        confidence=0.9,
        claims=extent_of(analysis, rows),
    )


def _found(analysis: Analysis, work: DeviceOps) -> Iterator[_OneHot]:
    scatters = np.flatnonzero(work.named("scatter_") & ~work.backward & ~work.optimizer)
    makers: dict[tuple[int, int], list[int]] = {}
    for group in work.groups(scatters):
        size = _one_hot_size(analysis, int(work.op[group[0]]))
        if size is not None:
            makers.setdefault(size, []).extend(group.tolist())
    for size, scattered in makers.items():
        yield _with_products(analysis, work, size, np.sort(np.array(scattered, dtype=np.int64)))


def _one_hot_size(analysis: Analysis, op: int) -> tuple[int, int] | None:
    """(rows, classes) when the operator writes one constant into each row of a matrix."""
    args = args_of(analysis.trace, op)
    if len(args.dims) != _SCATTER_ARGS or args.dims[3] != [] or not args.is_tensor(0):
        return None
    whole = args.shape(0)
    if not args.is_tensor(2) or len(whole) < 2 or whole[-1] < 2:
        return None
    if args.shape(2) != (*whole[:-1], 1):
        return None
    return prod(whole[:-1]), whole[-1]


def _with_products(
    analysis: Analysis, work: DeviceOps, size: tuple[int, int], scattered: IntArray
) -> _OneHot:
    """The products after each scatter, their backward pass, and what makes the matrices."""
    rows, classes = size
    costs = analysis.roof.costs
    picks = (costs.m == rows) & (costs.k == classes)
    sums = (costs.k == rows) & ((costs.m == classes) | (costs.n == classes))
    fits = np.flatnonzero((picks | sums) & (costs.batch <= 1) & (costs.op_row >= 0))
    at = positions(work, costs.rows[fits])
    forward = ~work.backward[at] & ~work.optimizer[at]
    first = fits[forward][_first_after(work, at[forward], scattered)]
    own = analysis.trace.tree.node_of[costs.op_row[first]]
    backward = work.backward[at] & np.isin(work.anchor[at], own)
    chosen = np.sort(np.concatenate((first, fits[backward])))
    products = positions(work, costs.rows[chosen])
    width = np.where(costs.n[chosen] == classes, costs.m[chosen], costs.n[chosen])
    made = _making(analysis, work, size, products)
    return _OneHot(rows, classes, products, ~picks[chosen], width, made)


def _first_after(work: DeviceOps, at: IntArray, scattered: IntArray) -> np.ndarray:
    """Which of the products are the first one after a scatter."""
    when = work.at[at]
    after = np.searchsorted(work.at[scattered], when, side="right")
    first = np.append(True, np.diff(after) > 0)[: after.size]
    return np.asarray(first & (after > 0), dtype=bool)


def _making(
    analysis: Analysis, work: DeviceOps, size: tuple[int, int], products: IntArray
) -> IntArray:
    """Events that make the matrices; none where the matrices have another use."""
    rows, classes = size
    others = np.setdiff1d(np.flatnonzero((work.op >= 0) & ~work.backward), products)
    made: list[int] = []
    for group in work.groups(others):
        args = args_of(analysis.trace, int(work.op[group[0]]))
        shapes = [args.shape(i) for i in args.tensors()]
        if not any(s and s[-1] == classes and prod(s) == rows * classes for s in shapes):
            continue
        if work.op_name(int(group[0])) not in _MAKING:
            return np.empty(0, dtype=np.int64)
        made += group.tolist()
    return np.sort(np.array(made, dtype=np.int64))


def _changes(
    analysis: Analysis, work: DeviceOps, found: list[_OneHot], options: Thresholds
) -> list[Change]:
    products = np.concatenate([one.products for one in found])
    order = np.argsort(products)
    products = products[order]
    made = np.unique(np.concatenate([one.made for one in found]))
    summed = np.concatenate([one.summed for one in found])[order]
    # A lookup reads a row and writes it; a sum by class reads rows and writes the table.
    elements = np.concatenate(
        [one.width * (one.rows + np.where(one.summed, one.classes, one.rows)) for one in found]
    )[order]
    bandwidth = analysis.peaks.bandwidth_gbps if analysis.peaks is not None else None
    dropped, host = work.call[made], host_with_callers(work, made)
    changes = []
    for reached, sort_ns in zip(options.reached, options.sort_ns, strict=True):
        new = np.where(summed, float(sort_ns), 0.0)
        if bandwidth is not None:
            new = new + 4.0 * elements / (reached * bandwidth)
        times = work.rows[products], shrunk(work.ns[products], new)
        changes.append(
            Change(
                durations=times,
                drop_calls=np.unique(dropped[dropped >= 0]),
                host_cut=host,
                extra_host_ns=int(sort_ns * summed.sum() / max(analysis.steps_on_host, 1)),
            )
        )
    return changes


def _picking(t: TraceBuilder, *, looked_up: bool, averaged: bool = False) -> None:
    """Steps of 5 ms that pick 8,192 of 16,384 rows of a table, in one way or the other."""
    rows, classes, width = 8_192, 16_384, 256
    for step in range(4):
        at, device = step * 5_000.0, step * 5_000.0 + 2_060
        t.step(at, 4_990)
        t.op("aten::mm", at + 2, 7, dims=[[rows, width], [width, 4 * width]])
        t.kernel("nvjet_sm90_tst", at + 60, 2_000, launch_at=at + 4)
        if looked_up:
            dims = [[classes, width], [rows], [], [], []]
            t.op("aten::embedding", at + 10, 15, dims=dims)
            t.kernel("indexSelectLargeIndex", device, 8, launch_at=at + 14)
            device += 8
        else:
            hot, int64 = [rows, classes], ["long int"]
            for k, (name, took) in enumerate((("fill_", 350), ("scatter_", 5), ("copy_", 620))):
                dims = [hot, [], [rows, 1], []] if name == "scatter_" else [hot, []]
                types = [*int64, "Scalar", *int64, "Scalar"][: len(dims)]
                t.op(f"aten::{name}", at + 10 + 20 * k, 15, dims=dims, types=types)
                t.kernel("elementwise_kernel", device, took, launch_at=at + 14 + 20 * k)
                device += took
            t.op("aten::mm", at + 80, 15, dims=[hot, [classes, width]])
            t.kernel("nvjet_sm90_tst", device, 240, launch_at=at + 84)
            device += 240
        if averaged:
            t.op("aten::mean", at + 100, 15, dims=[[rows, classes], [], [], []])
            t.kernel("reduce_kernel", device, 100, launch_at=at + 104)
            device += 100
        t.sync(at + 150, device - at - 140)


def _one_hot(t: TraceBuilder) -> None:
    _picking(t, looked_up=False)


def _averaged(t: TraceBuilder) -> None:
    _picking(t, looked_up=False, averaged=True)


def _looked_up(t: TraceBuilder) -> None:
    _picking(t, looked_up=True)


RULE = Rule(
    code="CP229",
    name="one-hot-product",
    class_="compute",
    summary="Rows of a table are picked by a product with a one-hot matrix.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "ops", "shapes"}),
    evidence="T",
    references=(_EMBEDDING,),
    examples=(
        Example("8,192 rows picked by one-hot rows of 16,384 columns", _one_hot, fires=True),
        Example("one-hot rows that are averaged as well", _averaged, fires=True),
        Example("the same rows looked up by their index", _looked_up, fires=False),
    ),
)
