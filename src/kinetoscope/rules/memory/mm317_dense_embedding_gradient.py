"""The gradient of a large embedding is written for every row, though few rows were looked up.

## What it finds
The backward of an embedding whose table is much larger than what a step looks up, for a sizeable
part of the busy time or with a table 20 times the size of the looked-up rows.

## Why it matters
A dense gradient is cleared and written for the whole table, and the optimizer then reads and
writes the table, its gradient and its moments, although all but a few rows have a gradient of
zero. A table that a step looks up twice gets two such gradients, which are added.

## How to fix it
`nn.Embedding(..., sparse=True)`, or `nn.EmbeddingBag` so, with `torch.optim.SparseAdam` or SGD for
the table; the fused tables of torchrec for recommenders; a smaller or hashed vocabulary; or freeze
the table.

## Limits
A table that is also the output layer needs a dense gradient and is left out. `SparseAdam` updates
only the looked-up rows' moments, which is another algorithm than Adam: compare the loss. Its own
cost on the host is an estimate. SGD takes sparse gradients as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.cost import kernel_costs
from kinetoscope.metrics.cost_args import NotRecordedError
from kinetoscope.metrics.device_ops import DeviceOps, args_of, device_ops
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules._inside import nearest_named, owner_of
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import busy_share, extent_of, per_step_ns, places, shrunk
from kinetoscope.rules.framework._optimizer import optimizer_steps
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration, percent, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_BACKWARD = {"embedding_dense_backward": 2, "_embedding_bag_dense_backward": 5}
"""Operators of the backward pass, and the position of the number of rows among their arguments."""
_PASSES = {"Adam": 7, "AdamW": 7, "SGD": 3, "Adagrad": 5, "RMSprop": 5}
"""Times that an update reads or writes a tensor of the parameters' size (RULES, Section 3)."""
_USUAL_PASSES = 5


class Thresholds(Options, frozen=True):
    """When a dense gradient is worth a word."""

    min_share: float = 0.02
    """Share of the busy time in the embedding's backward and the update of its table."""
    min_ratio: float = 4.0
    """Rows of the table for each row that a step looks up at most."""
    updated: tuple[float, float, float] = (0.0, 0.8, 1.0)
    """Part of the table's update that goes."""
    left: tuple[float, float, float] = (0.5, 0.2, 0.05)
    """Part of the backward's time that stays: sorting and adding up the looked-up rows."""
    whole: tuple[float, float, float] = (0.4, 0.1, 0.02)
    """Part that stays of operators on all rows of the table, its gradient or a moment."""
    host_ns: tuple[int, int, int] = (400_000, 200_000, 50_000)
    """Host time of a sparse optimizer with moments in a step: coalescing and some ten operators.
    SGD takes none, it adds the rows."""


@dataclass(frozen=True)
class _Table:
    """The largest embedding whose gradient is dense."""

    rows: int
    width: int
    looked_up: int
    nbytes: int
    bag: bool


@dataclass(frozen=True)
class _Dense:
    """Positions of the device events that dense gradients cost.

    Attributes:
        own: of the embedding's backward.
        whole: on all rows, tensor by tensor: clearing, adding up, applying.
        shared: of an optimizer that updates the table and others at once.
        part: part of the time of `shared` that goes into the table.
        plain: the update only adds the gradient, as SGD without momentum does.
    """

    own: IntArray
    whole: IntArray
    shared: IntArray
    part: float
    plain: bool


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find large tables with few looked-up rows, and replay with sparse gradients."""
    work = analysis.get(device_ops)
    around = nearest_named(analysis.trace, lambda name: short_name(name) in _BACKWARD)
    owner = owner_of(work, around)
    mine = np.flatnonzero(owner >= 0)
    tables = _tables(analysis, np.unique(owner[mine]), options)
    if not tables:
        return
    dense = _dense(analysis, work, mine[np.isin(owner[mine], list(tables))], tables)
    applied = dense.whole[work.optimizer[dense.whole]]
    rows = work.rows[np.union1d(dense.own, np.setdiff1d(dense.whole, applied))]
    shared = work.rows[dense.shared]
    spent = per_step_ns(analysis, rows)
    updating = per_step_ns(analysis, work.rows[applied])
    updating += int(per_step_ns(analysis, shared) * dense.part)
    whole = np.union1d(rows, work.rows[applied])
    share = busy_share(analysis, whole) + dense.part * busy_share(analysis, shared)
    if share < options.min_share:
        return
    table = max(tables.values(), key=lambda t: (t.nbytes, t.looked_up))
    yield Hit(
        message=(
            f"The gradient of an embedding of {count(table.rows)} x {count(table.width)} "
            f"({size(table.nbytes)}) is dense though {count(table.looked_up)} rows were looked up: "
            f"{duration(spent)} a step for it and about {duration(updating)} to update the table, "
            f"{percent(min(share, 1.0))} of the busy time."
        ),
        evidence=(
            Evidence("backward_time", spent, "ns"),
            Evidence("table_update_time", updating, "ns", "derived"),
            Evidence("table", table.nbytes, "bytes"),
            Evidence("rows_looked_up", table.looked_up, "count"),
        ),
        locations=places(analysis, rows, calls=("embedding",)),
        fix=Fix(
            summary="Let the embedding make sparse gradients, with an optimizer that takes them.",
            snippet=f"nn.Embedding{'Bag' * table.bag}({table.rows}, {table.width}, sparse=True)  "
            f"# and torch.optim.{'SGD' if dense.plain else 'SparseAdam'} for it",
            reference="https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html",
        ),
        gain=analysis.gain(*_changes(work, dense, options)),
        confidence=0.7,
        claims=extent_of(analysis, np.union1d(whole, shared if dense.part > 0.5 else whole)),
    )


def _dense(analysis: Analysis, work: DeviceOps, own: IntArray, tables: dict[int, _Table]) -> _Dense:
    whole = np.setdiff1d(_on_all_rows(work, tables), own)
    applied = whole[work.optimizer[whole]]
    if applied.size:
        plain = set(work.op_names[applied]) <= {"add_"}
        return _Dense(own, whole, applied[:0], 0.0, plain)
    shared = np.flatnonzero(work.optimizer)
    part = _update_share(analysis, work, shared, tables)
    return _Dense(own, whole, shared, part, plain=False)


def _tables(analysis: Analysis, nodes: IntArray, options: Thresholds) -> dict[int, _Table]:
    """Tables by the call-tree node of their backward: large, and not an output layer too."""
    found = {}
    for node in nodes.tolist():
        row = int(analysis.trace.tree.rows[node])
        args = args_of(analysis.trace, row)
        name = short_name(analysis.trace.names[analysis.trace.column("name_id")[row]])
        try:
            width, looked_up = args.shape(0)[-1], args.n(1)
            rows = args.ints(_BACKWARD[name])[0]
            nbytes = rows * width * args.size(0)
            table = _Table(rows, width, looked_up, nbytes, "bag" in name)
        except (NotRecordedError, IndexError):
            continue
        large = rows >= options.min_ratio * looked_up
        if large and not _multiplied(analysis, rows, width):
            found[node] = table
    return found


_GATHERING = frozenset("add_ add fill_ zero_ copy_ clone".split())
"""What the backward pass does to gradients beside computing them: clearing, adding, keeping."""


def _on_all_rows(work: DeviceOps, tables: dict[int, _Table]) -> IntArray:
    """Positions of the events that gather such gradients or apply them, tensor by tensor."""
    shapes = {(table.rows, table.width) for table in tables.values()}
    candidates = work.backward & work.by_op_name(_GATHERING.__contains__) | work.optimizer
    found = [np.empty(0, dtype=np.int64)]
    for group in work.groups(np.flatnonzero(candidates & (work.op >= 0))):
        args = args_of(work.trace, int(work.op[group[0]]))
        if any(args.shape(i) in shapes for i in args.tensors()):
            found.append(group)
    return np.sort(np.concatenate(found))


def _multiplied(analysis: Analysis, rows: int, width: int) -> bool:
    """Does some matrix product have both sizes of the table? Then it is an output layer too."""
    costs = analysis.get(kernel_costs)
    sizes = (costs.m, costs.n, costs.k)
    has_rows = np.any([size == rows for size in sizes], axis=0)
    has_width = np.any([size == width for size in sizes], axis=0)
    return bool((has_rows & has_width).any())


def _update_share(
    analysis: Analysis, work: DeviceOps, update: IntArray, tables: dict[int, _Table]
) -> float:
    """Part of the optimizer's device time that goes into the tables."""
    if update.size == 0 or analysis.peaks is None:
        return 0.0
    names = analysis.get(optimizer_steps).names
    passes = max((_PASSES.get(name, _USUAL_PASSES) for name in names), default=_USUAL_PASSES)
    total = sum(table.nbytes for table in {(t.rows, t.width): t for t in tables.values()}.values())
    each = max(int(per_step_ns(analysis, work.rows[update])), 1)
    return min(passes * total / analysis.peaks.achievable_bytes_per_ns / each, 1.0)


def _changes(work: DeviceOps, dense: _Dense, options: Thresholds) -> list[Change]:
    """Sparse gradients, at worst, likely and at best.

    They are neither sorted nor added up: their kernels go but for one. A plain update adds them to
    the table as they are; one with moments sorts them first.
    """
    at = np.concatenate((dense.own, dense.whole, dense.shared))
    sizes = dense.own.size, dense.whole.size, dense.shared.size
    first = np.unique(work.op[dense.own], return_index=True)[1]
    calls = np.setdiff1d(work.call[dense.own], work.call[dense.own[first]])
    levels = zip(options.left, options.whole, options.updated, options.host_ns, strict=True)
    changes = []
    for left, kept, updated, host in levels:
        stays = np.repeat((left, kept, 1 - dense.part * updated), sizes)
        new = shrunk(work.ns[at], work.ns[at] * stays)
        changes.append(
            Change(
                durations=(work.rows[at], new),
                drop_calls=calls[(calls >= 0) & dense.plain],
                extra_host_ns=0 if dense.plain else host,
            )
        )
    return changes


def _lookups(t: TraceBuilder, table: int, width: int) -> None:
    for step in range(4):
        at = step * 8_000
        t.step(at, 7_990)
        t.op("aten::embedding", at + 10, 12, dims=[[table, width], [8_192], [], [], []], seq=7)
        t.kernel("index_kernel", at + 30, 20, launch_at=at + 14)
        t.op("aten::mm", at + 40, 12, dims=[[8_192, width], [width, width]])
        t.kernel("gemm", at + 50, 1_500, launch_at=at + 44)
        t.backward("EmbeddingBackward0", at + 60, 40, seq=7)
        t.op(
            "aten::embedding_dense_backward",
            at + 62,
            36,
            dims=[[8_192, width], [8_192], [], [], []],
            types=["float", "long int", "Scalar", "Scalar", "Scalar"],
            concrete=["", "", str(table), "-1", "False"],
            tid=1001,
        )
        t.kernel("fill", at + 1_550, 1_000, launch_at=at + 65, tid=1001)
        t.kernel("compute_grad_weight", at + 2_550, 1_000, launch_at=at + 80, tid=1001)
        t.annotation("Optimizer.step#SGD.step", at + 110, 60)
        t.op("aten::_foreach_add_", at + 112, 40)
        t.kernel("multi_tensor_apply_kernel", at + 3_550, 3_000, launch_at=at + 116)
        t.sync(at + 180, 6_400)


def _large(t: TraceBuilder) -> None:
    _lookups(t, 10_000_000, 128)


def _small(t: TraceBuilder) -> None:
    _lookups(t, 30_000, 128)


RULE = Rule(
    code="MM317",
    name="dense-embedding-gradient",
    class_="memory",
    summary="The gradient of a large embedding is dense though few rows were looked up.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "shapes"}),
    evidence="TE",
    references=(
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html",
        "https://docs.pytorch.org/docs/stable/generated/torch.optim.SparseAdam.html",
    ),
    examples=(
        Example("10 million rows, 8192 of them looked up", _large, fires=True),
        Example("a vocabulary of 30,000 words", _small, fires=False),
    ),
)
