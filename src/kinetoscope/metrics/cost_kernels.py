"""What kernels tell of their operators where the recorded arguments do not."""

from __future__ import annotations

import re

import numpy as np

from kinetoscope.metrics.cost_args import parse_list
from kinetoscope.metrics.precision import Dtype, list_element
from kinetoscope.trace.trace import IntArray, Trace

__all__ = ["distinct_rows", "list_elements", "looked_up", "lookups"]


def list_elements(
    trace: Trace, kernels: IntArray, position: IntArray, ops: int
) -> tuple[list[tuple[Dtype, int]], IntArray]:
    """Element types of tensor lists, and which of them each operator has (0: unknown)."""
    names, index = distinct_rows(
        trace.column("name_id")[kernels].astype(np.int64), len(trace.names)
    )
    found = [list_element(trace.names[i]) for i in names]
    elements = [(Dtype.UNKNOWN, 0), *sorted(set(found) - {(Dtype.UNKNOWN, 0)})]
    code = np.array([elements.index(element) for element in found], dtype=np.int64)
    result = np.zeros(ops, dtype=np.int64)
    np.maximum.at(result, position, code[index])
    return elements, result


def looked_up(
    trace: Trace, kernels: IntArray, position: IntArray, ops: int
) -> tuple[list[tuple[int, int]], IntArray]:
    """Numbers of (rows, elements) that lookups made, and which of them each operator has.

    Lists of optional tensors, such as the indices of `x[i]`, are recorded without shapes. -1:
    unknown, as in the first entry.
    """
    counts, result = [(-1, -1)], np.zeros(ops, dtype=np.int64)
    if kernels.size == 0:
        return counts, result
    both = np.stack([trace.column(c)[kernels].astype(np.int64) for c in ("name_id", "launch_id")])
    pairs, which = np.unique(both, axis=1, return_inverse=True)
    found = [
        lookups(trace.names[name], trace.texts[launch] if launch >= 0 else "")
        for name, launch in pairs.T.tolist()
    ]
    counts += sorted(set(found) - {(-1, -1)})
    code = np.array([counts.index(count) for count in found], dtype=np.int64)
    np.maximum.at(result, position, code[which.reshape(-1)])
    return counts, result


_ELEMENTWISE = re.compile(r"index_elementwise_kernel<(\d+), ?(\d+)")


def lookups(kernel: str, launch: str) -> tuple[int, int]:
    """Rows or elements that a kernel of `x[i]` looks up, by its grid; -1: not known from it.

    Args:
        kernel: its name. The vectorised one has a block a row; the other its threads a block and
            elements a thread as template arguments, and rounds up to whole blocks.
        launch: raw JSON of its launch attributes, the grid first.
    """
    grid = next(iter(parse_list(launch)), None)
    if not isinstance(grid, list) or not grid or type(grid[0]) is not int:
        return -1, -1
    if "vectorized_gather_kernel" in kernel:
        return grid[0], -1
    match = _ELEMENTWISE.search(kernel)
    return (-1, grid[0] * int(match[1]) * int(match[2])) if match else (-1, -1)


def distinct_rows(rows: IntArray, size: int) -> tuple[IntArray, IntArray]:
    """The distinct rows, sorted, and for each entry its position among them (-1 stays -1).

    Args:
        rows: numbers below `size`.
        size: of the table that they index.
    """
    seen = np.zeros(size + 1, dtype=bool)
    seen[rows] = True  # -1 marks the extra last place
    distinct = np.flatnonzero(seen[:-1])
    position = np.full(size + 1, -1, dtype=np.int64)
    position[distinct] = np.arange(distinct.size)
    return distinct, position[rows]
