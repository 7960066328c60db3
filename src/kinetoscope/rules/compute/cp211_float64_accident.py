"""Part of the program computes in float64.

## What it finds
Operators on float64 (or complex128) tensors of more than one element that take a sizeable part of
the time, on the device or, without one, on the host.

## Why it matters
NumPy arrays are float64 unless told otherwise, and one float64 operand makes the result float64.
Twice the bytes move, and the arithmetic runs at half the float32 rate on data-centre GPUs and at
1/32 to 1/64 on others. Matrix units help little or not at all.

## How to fix it
Convert where the data enters: `torch.from_numpy(a.astype(np.float32))`, `tensor.float()`,
`dtype=torch.float32` in factories. Look for the first float64 operator: it is named here. Matrix
products gain most where TF32 is allowed as well: `torch.set_float32_matmul_precision("high")`.

## Limits
Scientific code may want float64. Where factorisations, solutions of systems and eigenvalues
(`torch.linalg`) take a fifth of the float64 time, it is taken for a choice: rounded to float32,
such matrices often cannot be factorised any more. The finding then has low severity, and its gain
may be nothing. Where the recording does not tell whether TF32 is allowed, the
gain of matrix products ranges from that of the vector units to that of TF32. Python scalars and
tensors of one element do not count: they do not change the type of the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.cost_args import Args
from kinetoscope.metrics.device_ops import DeviceOps, args_of, dense
from kinetoscope.metrics.intervals import clip, measure
from kinetoscope.metrics.precision import Dtype, list_element
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._float32 import Rates, float32_ns
from kinetoscope.rules.compute._kernels import (
    busy_share,
    device_work,
    extent_of,
    named_so,
    per_step_ns,
    places,
)
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray, Trace
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_WIDE = (Dtype.FP64, Dtype.COMPLEX128)


class Thresholds(Options, frozen=True):
    """When float64 is worth a word."""

    min_share: float = 0.02
    """Share of the busy time (without a device: of the step) in float64 operators."""
    left: tuple[float, float, float] = (0.65, 0.5, 0.4)
    """Time in float32 over that in float64 where memory bounds the operator."""
    vector: tuple[float, float, float] = (0.5, 0.65, 0.75)
    """Share of the float32 peak that products on the vector units reach (37 to 51 of 67 TFLOP/s on
    an H200, the largest most)."""
    tf32: tuple[float, float, float] = (0.35, 0.6, 0.7)
    """Share of the TF32 peak that products reach (CP201)."""
    solving: float = 0.2
    """Share of the float64 time in factorisations and solutions from which on it is a choice."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find operators on float64 tensors and replay them in float32."""
    if analysis.device is None:
        yield from _on_host(analysis, options)
        return
    work = device_work(analysis)
    wide = _wide_events(analysis, work)
    rows = work.rows[wide]
    share = busy_share(analysis, rows)
    if rows.size == 0 or share < options.min_share:
        return
    spent = per_step_ns(analysis, rows)
    names = [work.op_name(i) for i in wide]
    chosen = _solved(names, work.ns[wide]) >= options.solving
    new = float32_ns(analysis, work, wide, Rates(options.left, options.vector, options.tf32))
    changes = [Change(durations=(rows, ns)) for ns in new]
    yield Hit(
        message=(
            f"float64 operators take {duration(spent)} a step, {percent(min(share, 1.0))} of the "
            f"device's busy time, most of it in {_usual(names, work.ns[wide])}."
            f"{_CHOSEN if chosen else ''}"
        ),
        evidence=(
            Evidence("float64_time", spent, "ns"),
            Evidence("busy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("first_operator", names[0], "text"),
        ),
        locations=places(analysis, rows),
        fix=_KEEP if chosen else _FIX,
        gain=analysis.gain(*([Change(), *changes[1:]] if chosen else changes)),
        confidence=0.4 if chosen else 0.9,
        claims=extent_of(analysis, rows),
        at_most="low" if chosen else "critical",
    )


_FIX = Fix(
    summary="Convert to float32 where the float64 data enters the program.",
    snippet="x = torch.from_numpy(a.astype(np.float32))  # or x.float()",
    reference="https://docs.pytorch.org/docs/stable/tensor_attributes.html",
)
_KEEP = Fix(
    summary="Keep float64 for what is factorised; try float32 for the rest, and compare the "
    "results.",
    snippet="factor = torch.linalg.cholesky(matrix.double())\nx = factor.float()",
    reference="https://docs.pytorch.org/docs/stable/tensor_attributes.html",
)
_CHOSEN = " Matrices are factorised or systems solved in it, which may need it."
_SOLVERS = frozenset(
    "cholesky cholesky_solve _cholesky_solve_helper cholesky_inverse triangular_solve lu_solve "
    "lu_unpack geqrf ormqr orgqr svd inverse pinverse det logdet slogdet lstsq matrix_exp".split()
)
_PLAIN_LINALG = frozenset(
    "linalg_norm linalg_vector_norm linalg_matrix_norm linalg_cross linalg_vecdot linalg_matmul "
    "linalg_multi_dot linalg_diagonal linalg_vander".split()
)
"""Operators of `torch.linalg` that neither factorise nor solve."""


def _solved(names: list[str], ns: IntArray) -> float:
    """Share of this time in factorisations, solutions of systems and eigenvalues."""
    solves = np.array([_is_solver(name) for name in names], dtype=bool)
    return float(ns[solves].sum() / max(int(ns.sum()), 1))


def _is_solver(name: str) -> bool:
    linalg = name.startswith(("linalg_", "_linalg_")) and name not in _PLAIN_LINALG
    return linalg or name in _SOLVERS


def _wide_events(analysis: Analysis, work: DeviceOps) -> IntArray:
    """Positions of the events launched by operators on float64 tensors.

    Types of lists are not recorded: there the kernel's name tells.
    """
    wide = named_so(analysis, work.rows, lambda name: list_element(name)[0] in _WIDE)
    wide &= work.op >= 0
    for group in work.groups(np.flatnonzero(work.op >= 0)):
        wide[group] |= _is_wide(args_of(analysis.trace, int(work.op[group[0]])))
    return np.flatnonzero(wide)


def _is_wide(args: Args) -> bool:
    """Is there a float64 tensor of more than one element?"""
    return any(args.dtype(i) in _WIDE and prod(args.shape(i)) > 1 for i in args.tensors())


def _on_host(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Without a device the operators' own time counts."""
    rows = analysis.in_steps(_wide_ops(analysis.trace))
    time = analysis.extent(rows)
    spent = measure(clip(time, *analysis.window)) // analysis.steps
    share = spent / max(analysis.step_ns, 1)
    if rows.size == 0 or share < options.min_share:
        return
    names = analysis.trace.names
    name_id = analysis.trace.column("name_id")
    dur = analysis.trace.column("dur_ns")[rows]
    shorts = [short_name(names[name_id[r]]) for r in rows]
    chosen = _solved(shorts, dur) >= options.solving
    changes = [Change(host_cut=time, host_cut_factor=1 - part) for part in options.left]
    yield Hit(
        message=(
            f"float64 operators take {duration(spent)} a step ({percent(min(share, 1.0))}), most "
            f"of it in {_usual(shorts, dur)}.{_CHOSEN if chosen else ''}"
        ),
        evidence=(
            Evidence("float64_time", spent, "ns"),
            Evidence("first_operator", shorts[0], "text"),
        ),
        locations=analysis.locations(rows),
        fix=_KEEP if chosen else _FIX,
        gain=analysis.gain(*([Change(), *changes[1:]] if chosen else changes)),
        confidence=0.4 if chosen else 0.9,
        claims=time,
        at_most="low" if chosen else "critical",
    )


def _wide_ops(trace: Trace) -> IntArray:
    """Rows of the outermost operators on float64 tensors."""
    tree = trace.tree
    types = trace.column("types_id")[tree.rows].astype(np.int64)
    dims = trace.column("dims_id")[tree.rows].astype(np.int64)
    ops = np.flatnonzero((tree.kind == Kind.CPU_OP) & (types >= 0) & (dims >= 0))
    _, first, which = np.unique(
        dense([types[ops], dims[ops]]), return_index=True, return_inverse=True
    )
    wide = np.array([_is_wide(args_of(trace, int(tree.rows[ops[i]]))) for i in first], dtype=bool)
    chosen = ops[wide[which]]
    return np.sort(tree.rows[chosen])


def _usual(names: list[str], ns: IntArray) -> str:
    """The operator with the most time."""
    total: dict[str, int] = {}
    for name, time in zip(names, ns, strict=True):
        total[name] = total.get(name, 0) + int(time)
    return max(total, key=lambda name: total[name])


def _products(t: TraceBuilder, dtype: str) -> None:
    shape = [2048, 2048]
    for step in range(4):
        at = step * 2_000
        t.step(at, 1_990)
        for i in range(3):
            t.op("aten::mul", at + 10 + 20 * i, 15, dims=[shape, shape], types=[dtype, dtype])
            t.kernel(
                "vectorized_elementwise_kernel", at + 100 + 500 * i, 500, launch_at=at + 14 + 20 * i
            )
        t.sync(at + 80, 1_525)


def _double(t: TraceBuilder) -> None:
    _products(t, "double")


def _single(t: TraceBuilder) -> None:
    _products(t, "float")


RULE = Rule(
    code="CP211",
    name="float64-accident",
    class_="compute",
    summary="Part of the program computes in float64.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops", "shapes"}),
    evidence="TE",
    remedies=("autocast",),
    references=("https://docs.pytorch.org/docs/stable/tensor_attributes.html",),
    examples=(
        Example("products of float64 tensors", _double, fires=True),
        Example("the same in float32", _single, fires=False),
    ),
)
