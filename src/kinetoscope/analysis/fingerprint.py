"""What tells one program from another, however its work is implemented.

A fix changes operators: it fuses some, adds casts, moves others into a graph. What it leaves is
the size of the matrix products and convolutions, so these identify a program first.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from kinetoscope.analysis.core import Analysis
from kinetoscope.analysis.costs import LONGEST_NAME, Steady, module_class
from kinetoscope.result.profile import Fingerprint, Mark
from kinetoscope.trace.kinds import Family, Kind
from kinetoscope.trace.op_names import op_families, op_family, short_name
from kinetoscope.trace.trace import IntArray

MOST_MARKS = 60
"""Entries of each list of the fingerprint, most frequent first."""

_FUSED = re.compile(r"^triton_[a-z]+_fused_(\w+?)(?:_\d+)?$")

_PLUMBING = {"_to_copy", "to", "copy", "clone", "contiguous", "fill", "zero", "zeros", "ones"}
"""Operators that come and go with every change of layout or precision."""


def fingerprint(analysis: Analysis, steady: Steady) -> Fingerprint:
    """Return what tells this program from another one."""
    ops = analysis.rows(Kind.CPU_OP)
    ops = ops[steady.host[ops] >= 0]
    device = analysis.rows(Kind.KERNEL)
    device = device[steady.device[device] >= 0]
    calls = analysis.rows(Kind.MODULE)
    calls = calls[steady.host[calls] >= 0]
    return Fingerprint(
        rank=analysis.rank,
        products=_marks(_products(analysis, ops), steady.count),
        operators=_marks(_operators(_counted(analysis, ops)), steady.count),
        kernels=_marks(
            ((name[:LONGEST_NAME], n) for name, n in _counted(analysis, device)), steady.count
        ),
        modules=_marks(
            ((module_class(name), n) for name, n in _counted(analysis, calls)), steady.count
        ),
    )


def _counted(analysis: Analysis, rows: IntArray) -> list[tuple[str, int]]:
    ids, counts = np.unique(analysis.trace.column("name_id")[rows], return_counts=True)
    return [(analysis.trace.names[i], int(n)) for i, n in zip(ids, counts, strict=True)]


def _operators(counted: Sequence[tuple[str, int]]) -> Iterable[tuple[str, int]]:
    """Operators that compute, without in-place marks; of a fused kernel its parts."""
    for name, count in counted:
        fused = _FUSED.match(name)
        if fused:
            for part in _parts(fused[1]):
                yield part, count
            continue
        plain = _plain(short_name(name))
        if op_family(name) is not Family.NONE and plain not in _PLUMBING:
            yield plain, count


def _parts(fused: str) -> list[str]:
    """Operators in the name of a fused kernel; those with `_` inside fall apart, harmlessly."""
    return [part for part in fused.split("_") if len(part) > 1 and part not in _PLUMBING]


def _plain(name: str) -> str:
    return name.removesuffix("_") if not name.startswith("__") else name


def _products(analysis: Analysis, ops: IntArray) -> Iterable[tuple[str, int]]:
    """Sizes of the innermost matrix products and convolutions."""
    trace, tree = analysis.trace, analysis.trace.tree
    names = trace.column("name_id")
    kind = op_families(trace)[names[ops]]
    rows = ops[np.isin(kind, (Family.GEMM, Family.CONV)) & (trace.column("dims_id")[ops] >= 0)]
    if rows.size == 0:
        return
    up = tree.parent[tree.node_of[rows]]
    outer = np.where(up >= 0, tree.op[np.maximum(up, 0)], -1)
    has_inner = np.zeros(tree.rows.size, dtype=bool)
    has_inner[outer[outer >= 0]] = True  # its product is counted with the inner operator
    rows = rows[~has_inner[tree.node_of[rows]]]
    key = names[rows].astype(np.int64) << 32 | trace.column("dims_id")[rows]
    unique, counts = np.unique(key, return_counts=True)
    for name, dims, count in zip(
        (unique >> 32).tolist(), (unique & 0xFFFFFFFF).tolist(), counts.tolist(), strict=True
    ):
        label = product_label(op_family(trace.names[name]), trace.texts[dims])
        if label:
            yield label, int(count)


def product_label(family: Family, dims: str) -> str:
    """`mm 512 1024 4096` for a product of [4096, 512] and [512, 1024]; "" when unclear."""
    try:
        parsed = json.loads(dims)
    except ValueError:
        return ""
    shapes = [s for s in parsed if _is_shape(s)]
    if family is Family.CONV:
        weights = [s for s in shapes if len(s) >= 3]
        return f"conv {'x'.join(map(str, weights[1]))}" if len(weights) >= 2 else ""
    matrices = [s for s in shapes if len(s) >= 2][:2]
    if len(matrices) < 2:
        return _vector_label(shapes)
    left, right = matrices
    if len(left) == len(right) == 3:  # a batch of products
        return f"bmm {_sizes(left[0], left[1], left[2], right[2])}"
    inner = left[-1]
    other = right[0] if right[-1] == inner and right[0] != inner else right[-1]
    return f"mm {_sizes(prod(left[:-1]), inner, other)}"


def _vector_label(shapes: list[list[int]]) -> str:
    """A vector times a matrix: a product with one row."""
    matrix = next((s for s in shapes if len(s) == 2), None)
    return f"mm {_sizes(1, *matrix)}" if matrix else ""


def _sizes(*sizes: int) -> str:
    return " ".join(str(size) for size in sorted(sizes))


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(n, int) for n in value)


def _marks(counted: Iterable[tuple[str, int]], steps: int) -> tuple[Mark, ...]:
    total: Counter[str] = Counter()
    for name, count in counted:
        total[name] += count
    ordered = sorted(total.items(), key=lambda item: (-item[1], item[0]))[:MOST_MARKS]
    return tuple(Mark(name, round(count / steps, 3)) for name, count in ordered)
