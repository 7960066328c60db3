"""What operators of a processor do, as opposed to what calling them costs."""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.budget import COMPUTE_FAMILIES
from kinetoscope.metrics.device_ops import args_of, largest_tensor
from kinetoscope.metrics.intervals import Intervals, empty, union
from kinetoscope.trace.kinds import Family
from kinetoscope.trace.op_names import op_families
from kinetoscope.trace.trace import IntArray

_WORK_NS = (5_000, 50_000, 200_000)
"""Without a device: a product this long, or another operator on much data, does work that stays
however many are done at once, at worst, likely, at best; a shorter one is mostly the call."""
_MUCH = 8_192
"""Elements that are much data."""


def host_work(analysis: Analysis) -> tuple[Intervals, Intervals, Intervals]:
    """Operators whose work stays when they are batched, at worst, likely, at best.

    Empty with a device: there operators only launch.
    """
    if analysis.device is not None:
        return empty(), empty(), empty()
    tree = analysis.trace.tree
    family = op_families(analysis.trace)[analysis.trace.column("name_id")[tree.rows]]
    nodes = np.flatnonzero(tree.outer_ops & (family != Family.NONE))
    much = np.isin(family[nodes], COMPUTE_FAMILIES) | _on_much_data(analysis, tree.rows[nodes])
    start, end = tree.start[nodes[much]], tree.end[nodes[much]]
    worst, likely, best = (
        union(start[long], end[long]) for long in (end - start >= least for least in _WORK_NS)
    )
    return worst, likely, best


def _on_much_data(analysis: Analysis, rows: IntArray) -> npt.NDArray[np.bool_]:
    _, first, which = np.unique(
        analysis.trace.column("dims_id")[rows], return_index=True, return_inverse=True
    )
    sizes = [prod(largest_tensor(args_of(analysis.trace, int(rows[i])))) for i in first]
    return np.asarray(np.array(sizes, dtype=np.int64)[which] >= _MUCH)
