"""Lookups and scattered writes take much longer than their data.

## What it finds
`index_put_`, `scatter`, `gather`, indexing with a tensor, `nonzero` and the backward of indexing,
whose kernels take a sizeable part of the busy time and much longer than moving what they touch.
And rows that are gathered one a link, scaled, and added up by target: a sparse product written out.

## Why it matters
Writing with repeated indices (`index_put_(accumulate=True)`, the backward of `x[idx]`) first
sorts all indices, then adds row by row. Reading with a tensor of indices into several dimensions
computes an address for every element. `index_select` and `F.embedding` copy whole rows. Rows that
are gathered only to be added up are written to memory and read back once for each step of that, and
added with atomic operations; a sparse product adds them while it reads.

## How to fix it
Read rows with `x.index_select(0, idx)` or `F.embedding(idx, x)` in place of `x[idx]`. Accumulate
with `index_add_` or `scatter_add_` in place of `index_put_(accumulate=True)`. Sort indices once
if they serve many times; switch deterministic mode off. For sums of rows use `F.embedding_bag`, or
a sparse matrix (CSR) of the weights that is made once: `graph @ x`.

## Limits
Graph networks and recommenders need such operators: the finding says what they cost beyond their
data. What reads or adds whole rows already (`index_select`, `index_add_`, `EmbeddingBag`) has no
faster form and is not counted, however slow. The gradient of an `nn.Embedding` is a matter of its
own (MM317), sorting too (CP204). No sparse matrix is proposed where the links come from the host in
each step or their number changes, nor for the sparse update of an optimizer; links that are drawn
anew on the device do not show. Weights that need gradients cost more than priced.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import DeviceOps
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import (
    busy_share,
    device_work,
    extent_of,
    heaviest_op,
    named_so,
    per_step_ns,
    places,
    shrunk,
)
from kinetoscope.rules.compute._sparse import sparse_products
from kinetoscope.rules.compute._written_sums import (
    ProductSpeed,
    parts_of,
    worthwhile,
    written_out,
)
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_PUTS = frozenset("index_put_ _index_put_impl_ index_put".split())
_LOOKUPS = _PUTS | frozenset(
    "index gather take scatter_ scatter scatter_add_ scatter_add scatter_reduce_ index_copy_ "
    "index_fill_ masked_select nonzero masked_scatter_ put_ gather_backward "
    "index_select_backward".split()
)
_WHOLE_ROWS = "vectorized_gather_kernel"
"""The kernel that `index_select`, `F.embedding` and, where it can, `x[i]` read whole rows with.
PyTorch has no faster one; narrow rows cost it a block each."""


class Thresholds(Options, frozen=True):
    """When lookups are worth a word."""

    min_share: float = 0.05
    """Share of the busy time in such kernels (RULES, CP216)."""
    min_ns: int = 10_000
    """Operators shorter than this are bound by their start-up."""
    slow: float = 2.5
    """Time over that of the data at half of the memory's bandwidth, from which on they are slow."""
    reached: tuple[float, float, float] = (0.1, 0.25, 0.5)
    """Share of the memory's bandwidth that operators on whole rows reach; narrow rows waste most of
    each access."""
    blind: tuple[float, float, float] = (0.9, 0.5, 0.3)
    """Time left where the size of the data was not recorded."""
    product: tuple[float, float, float] = (0.4, 0.8, 1.0)
    """Share of the memory's bandwidth that a sparse product reaches (cuSPARSE's CSR on an H200:
    0.82 with rows of 128 float32; shorter rows less)."""
    product_ns: int = 8_000
    """What a sparse product costs beside its data: it takes three kernels."""
    transposed: tuple[float, float, float] = (3.0, 1.0, 0.0)
    """Times that a product of the backward pass pays for the transpose of its matrix: PyTorch
    turns it anew each time, a program that keeps both never."""
    transpose_ns: int = 100_000
    """What that takes beside its data: some 20 kernels."""
    transpose_bytes: int = 256
    """What it moves for each link: eight passes of a radix sort over keys and positions."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find slow lookups and replay them at the speed of their data."""
    work = device_work(analysis)
    products = sparse_products(analysis, work)
    speed = ProductSpeed(
        options.product,
        options.product_ns,
        options.transposed,
        options.transpose_ns,
        options.transpose_bytes,
    )
    found = worthwhile(analysis, work, products, speed=speed, at=options.slow)
    parts = parts_of(products) if found else np.empty(0, dtype=np.int64)
    if found and busy_share(analysis, work.rows[parts]) >= options.min_share:
        yield written_out(analysis, work, products, found)
    which = np.setdiff1d(_slow(analysis, work, options), parts)
    rows = work.rows[which]
    if rows.size == 0 or busy_share(analysis, rows) < options.min_share:
        return
    share, spent = busy_share(analysis, rows), per_step_ns(analysis, rows)
    name = heaviest_op(analysis, work, which)
    sorts = name in _PUTS
    cause = "; it sorts its indices first" if sorts else ""
    back = ", in the backward pass" if work.backward[which].mean() > 0.5 else ""
    yield Hit(
        message=(
            f"`{name}` and other lookups take {duration(spent)} a step{back}, "
            f"{percent(min(share, 1.0))} of the busy time{cause}."
        ),
        evidence=(
            Evidence("lookup_time", spent, "ns"),
            Evidence("busy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("kernels_per_step", round(rows.size / analysis.steps, 1), "count"),
        ),
        locations=places(analysis, rows, calls=("index_put_", "gather", "scatter_", "index_add_")),
        fix=_fix(sorts),
        gain=analysis.gain(*_changes(analysis, work, which, options)),
        confidence=0.7,
        claims=extent_of(analysis, rows),
        at_most="high" if sorts else "medium",
    )


def _fix(sorts: bool) -> Fix:
    if sorts:
        return Fix(
            summary="Read rows with index_select or F.embedding and accumulate with index_add_: "
            "neither sorts.",
            snippet="rows = x.index_select(0, idx)   # in place of x[idx]\n"
            "out.index_add_(0, idx, rows)    # in place of index_put_(accumulate=True)",
            reference="https://docs.pytorch.org/docs/stable/generated/torch.Tensor.index_add_.html",
        )
    return Fix(
        summary="Look up whole rows (index_select, F.embedding) in place of single elements.",
        snippet="rows = x.index_select(0, idx)",
        reference="https://docs.pytorch.org/docs/stable/generated/torch.index_select.html",
    )


def _slow(analysis: Analysis, work: DeviceOps, options: Thresholds) -> IntArray:
    """Positions of the events of lookups that take long for their data."""
    candidate = np.flatnonzero(work.by_op_name(_LOOKUPS.__contains__) & (work.op >= 0))
    rows = named_so(analysis, work.rows[candidate], lambda name: _WHOLE_ROWS in name)
    candidate = candidate[~rows]
    if candidate.size == 0:
        return candidate
    _, at = np.unique(work.op[candidate], return_inverse=True)
    took = np.bincount(at, weights=work.ns[candidate])
    need = _data_ns(analysis, work, candidate, 0.5)
    least = np.bincount(at, weights=np.maximum(need, 0))
    keep = (took >= options.min_ns) & (took >= options.slow * least)
    return np.asarray(candidate[keep[at]], dtype=np.int64)


def _data_ns(analysis: Analysis, work: DeviceOps, which: IntArray, part: float) -> np.ndarray:
    """Time of each event's data at a part of the bandwidth, ns; -1 where not recorded."""
    roof = analysis.roof
    rows = work.rows[which]
    if roof.peaks is None or roof.costs.rows.size == 0:
        return np.full(rows.size, -1.0)
    at = np.minimum(np.searchsorted(roof.costs.rows, rows), roof.costs.rows.size - 1)
    known = (roof.costs.rows[at] == rows) & (roof.costs.bytes[at] >= 0)
    time = roof.costs.bytes[at] / (part * roof.peaks.bandwidth_gbps)
    return np.where(known, time, -1.0)


def _changes(
    analysis: Analysis, work: DeviceOps, which: IntArray, options: Thresholds
) -> list[Change]:
    ns = work.ns[which]
    changes = []
    for part, left in zip(options.reached, options.blind, strict=True):
        need = _data_ns(analysis, work, which, part)
        new = np.where(need >= 0, need, left * ns)
        changes.append(Change(durations=(work.rows[which], shrunk(ns, new))))
    return changes


def _putting(t: TraceBuilder, name: str, dur: float) -> None:
    for step in range(4):
        at = step * 2_000
        t.step(at, 1_990)
        t.op(
            name,
            at + 10,
            16,
            dims=[[100_000, 64], [], [200_000, 64], []],
            concrete=["", "", "", "True"],
        )
        t.kernel("indexing_backward_kernel", at + 30, dur, launch_at=at + 14)
        t.op("aten::mm", at + 40, 12, dims=[[4096, 4096], [4096, 4096]])
        t.kernel("sm80_gemm", at + 30 + dur, 900, launch_at=at + 44)
        t.sync(at + 60, dur + 880)


def _spreading(t: TraceBuilder, factor: list[int]) -> None:
    """2,000,000 rows of 64, gathered, scaled and added up: 1.4 ms."""
    rows, table = [2_000_000, 64], [100_000, 64]
    at = 0
    for _ in range(4):
        t.step(at, 1_490)
        t.op("aten::index_select", at + 10, 16, dims=[table, [], [2_000_000]],
             types=["float", "Scalar", "long int"])  # fmt: skip
        t.kernel("vectorized_gather_kernel", at + 30, 500, launch_at=at + 14)
        t.op("aten::mul", at + 30, 16, dims=[rows, factor], types=["float", "float"])
        t.kernel("elementwise_kernel", at + 530, 400, launch_at=at + 34)
        t.op("aten::index_add_", at + 50, 16, dims=[table, [], [2_000_000], rows, []],
             types=["float", "Scalar", "long int", "float", "Scalar"],
             concrete=["", "0", "", "", "1"])  # fmt: skip
        t.kernel("indexFuncLargeIndex", at + 930, 500, launch_at=at + 54)
        t.sync(at + 80, 1_355)
        at += 1_500


def _linked(t: TraceBuilder) -> None:
    _spreading(t, [2_000_000, 1])


def _filtered(t: TraceBuilder) -> None:
    _spreading(t, [2_000_000, 64])


def _sorted_puts(t: TraceBuilder) -> None:
    _putting(t, "aten::index_put_", 900)


def _quick(t: TraceBuilder) -> None:
    _putting(t, "aten::index_put_", 90)


RULE = Rule(
    code="CP216",
    name="slow-index-or-scatter",
    class_="compute",
    summary="Lookups and scattered writes take much longer than their data.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "ops"}),
    evidence="T",
    references=(
        "https://docs.pytorch.org/docs/stable/generated/torch.Tensor.index_add_.html",
        "https://docs.pytorch.org/docs/stable/generated/torch.index_select.html",
    ),
    examples=(
        Example("200,000 rows added to 100,000 in 0.9 ms", _sorted_puts, fires=True),
        Example("the same in 90 microseconds", _quick, fires=False),
        Example("rows that are gathered, scaled and added up", _linked, fires=True),
        Example("rows that meet as many others before that", _filtered, fires=False),
    ),
)
