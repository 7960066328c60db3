"""The gradient of a large embedding is written for every row, though few rows were looked up.

## What it finds
The backward of an embedding whose table is much larger than what a step looks up, for a sizeable
part of the busy time or with a table 20 times the size of the looked-up rows.

## Why it matters
A dense gradient is cleared and written for the whole table, and the optimizer then reads and
writes the table, its gradient and its moments, although all but a few rows have a gradient of
zero.

## How to fix it
`nn.Embedding(..., sparse=True)` with `torch.optim.SparseAdam` or SGD for the table; the fused
tables of torchrec for recommenders; a smaller or hashed vocabulary; or freeze the table.

## Limits
A table that is also the output layer needs a dense gradient and is left out. `SparseAdam` updates
only the looked-up rows' moments, which is another algorithm than Adam: compare the loss. Its own
cost on the host is an estimate.
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

_BACKWARD = "embedding_dense_backward"
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
    host_ns: tuple[int, int, int] = (400_000, 200_000, 50_000)
    """Host time of the sparse optimizer in a step: coalescing and some ten operators."""


@dataclass(frozen=True)
class _Table:
    """The largest embedding whose gradient is dense."""

    rows: int
    width: int
    looked_up: int
    nbytes: int


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find large tables with few looked-up rows, and replay with sparse gradients."""
    work = analysis.get(device_ops)
    around = nearest_named(analysis.trace, lambda name: short_name(name) == _BACKWARD)
    owner = owner_of(work, around)
    mine = np.flatnonzero(owner >= 0)
    tables = _tables(analysis, np.unique(owner[mine]), options)
    if not tables:
        return
    mine = mine[np.isin(owner[mine], list(tables))]
    rows = work.rows[mine]
    update = np.flatnonzero(work.optimizer)
    part = _update_share(analysis, work, update, tables)
    spent = per_step_ns(analysis, rows)
    updating = int(per_step_ns(analysis, work.rows[update]) * part)
    share = busy_share(analysis, rows) + part * busy_share(analysis, work.rows[update])
    if share < options.min_share:
        return
    table = max(tables.values(), key=lambda t: t.nbytes)
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
            snippet=f"nn.Embedding({table.rows}, {table.width}, sparse=True)  "
            "# and torch.optim.SparseAdam for it",
            reference="https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html",
        ),
        gain=analysis.gain(*_changes(work, mine, update, part, options)),
        confidence=0.7,
        claims=extent_of(analysis, np.union1d(rows, work.rows[update] if part > 0.5 else rows)),
    )


def _tables(analysis: Analysis, nodes: IntArray, options: Thresholds) -> dict[int, _Table]:
    """Tables by the call-tree node of their backward: large, and not an output layer too."""
    found = {}
    for node in nodes.tolist():
        args = args_of(analysis.trace, int(analysis.trace.tree.rows[node]))
        try:
            width, looked_up, rows = args.shape(0)[-1], args.n(1), args.ints(2)[0]
            table = _Table(rows, width, looked_up, rows * width * args.size(0))
        except (NotRecordedError, IndexError):
            continue
        large = rows >= options.min_ratio * looked_up
        if large and not _multiplied(analysis, rows, width):
            found[node] = table
    return found


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


def _changes(
    work: DeviceOps, mine: IntArray, update: IntArray, part: float, options: Thresholds
) -> list[Change]:
    """Sparse gradients, at worst, likely and at best."""
    rows = np.concatenate((work.rows[mine], work.rows[update]))
    changes = []
    for left, updated, host in zip(options.left, options.updated, options.host_ns, strict=True):
        new = np.concatenate(
            (work.ns[mine] * left, work.ns[update] * (1 - part * updated if updated else 1.0))
        )
        ns = np.concatenate((work.ns[mine], work.ns[update]))
        changes.append(Change(durations=(rows, shrunk(ns, new)), extra_host_ns=host))
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
