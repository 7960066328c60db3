"""Which of very many rows to look at for their places, so that none that weighs much is lost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kinetoscope.trace.trace import IntArray

_MOST_ROWS = 5000
_MOST_FUNCTIONS = 10
_MOST_OF_ONE = 500


def heavy_rows(
    rows: IntArray, name: IntArray, weights: IntArray
) -> tuple[Sequence[int], IntArray, npt.NDArray[np.float64]]:
    """Rows to look at; weights and numbers by which they stand for all rows of their functions.

    A function of many small rows may weigh more than one of a few large ones. An event that comes
    in several pieces is one event.
    """
    many = 1.0 / np.bincount(rows)[rows]
    if name.size <= _MOST_ROWS:
        return range(name.size), weights, many
    total = np.bincount(name + 1, weights=weights)
    some: list[int] = []
    scaled = weights.copy()
    for function in np.argsort(-total, kind="stable")[:_MOST_FUNCTIONS] - 1:
        mine = np.flatnonzero(name == function)
        number = many[mine].sum()
        mine = mine[np.argsort(-weights[mine], kind="stable")[:_MOST_OF_ONE]]
        scaled[mine] = np.rint(weights[mine] * (total[function + 1] / max(weights[mine].sum(), 1)))
        many[mine] *= number / max(many[mine].sum(), 1e-9)
        some.extend(mine.tolist())
    return some, scaled, many
