"""Loops that update many tensors, outside of any optimizer, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.loops import Loop, describe, find_loops
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules._collapse import collapse_gain, host_share, host_time, loop_places
from kinetoscope.rules._collapse import per_step as loop_time
from kinetoscope.rules.api import Hit
from kinetoscope.trace.kinds import Family
from kinetoscope.trace.op_names import op_family
from kinetoscope.trace.trace import Trace
from kinetoscope.units import count, duration, percent

_POINTWISE = frozenset({Family.ELEMENTWISE, Family.COPY})
_LONGEST_BODY = 12
"""An update has a handful of operators; more are a computation."""


def parameter_loops(analysis: Analysis, least: int) -> list[list[Loop]]:
    """Loops that do the same few pointwise operators with one tensor after the other.

    The tensors have several shapes, the same ones in each step, as parameters do, and nothing is
    differentiated: a moving average of the weights, a target network, decay or clipping by hand.

    Args:
        analysis: of one rank, with shapes.
        least: iterations, so tensors.

    Returns:
        The loops of each function of the program.
    """
    trace = analysis.trace
    places: dict[int, list[Loop]] = {}
    for loop in analysis.get(find_loops):
        if loop.repeats < least or loop.body > _LONGEST_BODY or not _updates(trace, loop):
            continue
        frame = trace.tree.user_frame[loop.nodes[0]]
        place = int(trace.column("name_id")[trace.tree.rows[frame]]) if frame >= 0 else -1
        places.setdefault(place, []).append(loop)
    return [loops for loops in places.values() if _come_back(trace, loops)]


def _come_back(trace: Trace, loops: list[Loop]) -> bool:
    """Are the tensors those of other loops too? Samples have other shapes in each step."""
    dims = trace.column("dims_id")
    shapes = {dims[trace.tree.rows[loop.nodes]].tobytes() for loop in loops}
    return len(loops) < _TWICE or _TWICE * len(shapes) <= len(loops)


_TWICE = 2


def _updates(trace: Trace, loop: Loop) -> bool:
    rows = trace.tree.rows[loop.nodes]
    name = trace.column("name_id")[rows[: loop.body]]
    if not all(op_family(trace.names[i]) in _POINTWISE for i in name):
        return False
    shapes = trace.column("dims_id")[rows[:: loop.body]]
    differentiated = (trace.column("seq")[rows] >= 0).mean() > _FEW
    return not differentiated and np.unique(shapes[shapes >= 0]).size > 1


_FEW = 0.1


ON_LISTS = Fix(
    summary="Update all tensors with one operator each, on lists: torch._foreach_*.",
    snippet="torch._foreach_mul_(averages, beta)   # in place of a loop over parameters\n"
    "torch._foreach_add_(averages, weights, alpha=1 - beta)",
    reference="https://docs.pytorch.org/docs/stable/optim.html",
)


def single_tensors(analysis: Analysis, least: int, min_share: float) -> Iterator[Hit]:
    """Loops over at least so many parameters, of such a share of the step, as calls on lists."""
    for loops in parameter_loops(analysis, least):
        share = host_share(analysis, loops)
        if share < min_share:
            continue
        body = describe(analysis.trace, loops[0])
        tensors = max(loop.repeats for loop in loops)
        spent = loop_time(analysis, loops)
        yield Hit(
            message=(
                f"A Python loop updates {count(tensors)} tensors one at a time "
                f"({', '.join(dict.fromkeys(body.names))}): {duration(spent)} of the host's time "
                f"({percent(min(share, 1.0))} of the step)."
            ),
            evidence=(
                Evidence("loop_time", spent, "ns"),
                Evidence("tensors", tensors, "count"),
                Evidence("operators_per_tensor", len(body.names), "count"),
            ),
            locations=loop_places(analysis, loops, calls=body.names),
            fix=ON_LISTS,
            gain=collapse_gain(analysis, loops),
            confidence=0.85,
            claims=host_time(loops),
        )
