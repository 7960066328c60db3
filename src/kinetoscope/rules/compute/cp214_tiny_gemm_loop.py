"""A Python loop makes many small matrix products that one batched product could do.

## What it finds
Eight or more small products of equal shape in a row, whose results are then stacked or
concatenated: parallel heads, experts or ensemble members called one by one.

## Why it matters
A small product uses a fraction of the device and costs a launch and several microseconds of host
time, forward and backward. One batched product does the same arithmetic in one launch.

## How to fix it
Stack the weights and use `torch.bmm`, `einsum` or `torch.func.vmap`; widen one `nn.Linear` to the
sum of all outputs and split its result; for unequal sizes a grouped product. Where one layer is
called again and again, join its inputs instead and call it once.

## Limits
That the results are joined shows that no product depends on another. A recurrence, where each
product needs the one before, is no case for this: see FW516. Loops over rows of a tensor are
FW516's too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.joined import joined_products
from kinetoscope.metrics.loops import Loop
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules._collapse import (
    collapse_gain,
    host_share,
    host_time,
    loop_places,
    per_step,
)
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import Trace
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_BMM = "https://docs.pytorch.org/docs/stable/generated/torch.bmm.html"


_SEVERAL_LAYERS = Fix(
    summary="Stack the weights and do all products in one batched call.",
    snippet="y = torch.einsum('bi,hio->bho', x, weights)  # weights: (heads, in, out)",
    reference=_BMM,
)
_ONE_LAYER = Fix(
    summary="The same layer is called each time: join its inputs and call it once.",
    snippet="y = layer(torch.cat(parts))  # then y.split(...), where parts are needed",
    reference=_BMM,
)


class Thresholds(Options, frozen=True):
    """When small products in a row are worth a word."""

    min_repeats: int = 8
    """Products in a row."""
    min_products: int = 20
    """Such products in a step (RULES, CP214)."""
    max_flop: float = 1e8
    """FLOP of each: an H200 does it in a tenth of a microsecond, less than a launch takes."""
    min_share: float = 0.03
    """Host time of the loops as a share of the step."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Group the loops by function and replay each as one batched product."""
    trace = analysis.trace
    groups: dict[int, list[Loop]] = {}
    for loop in joined_products(trace, least=options.min_repeats, max_flop=options.max_flop):
        frame = trace.tree.user_frame[loop.nodes[0]]
        place = int(trace.column("name_id")[trace.tree.rows[frame]]) if frame >= 0 else -1
        groups.setdefault(place, []).append(loop)
    for loops in groups.values():
        products = sum(loop.repeats for loop in loops) / max(trace.steps.count, 1)
        share = host_share(analysis, loops)
        if products >= options.min_products and share >= options.min_share:
            yield _hit(analysis, loops, products, share)


def _hit(analysis: Analysis, loops: list[Loop], products: float, share: float) -> Hit:
    trace = analysis.trace
    row = trace.tree.rows[loops[0].nodes[0]]
    name = short_name(trace.names[int(trace.column("name_id")[row])])
    repeats = max(loop.repeats for loop in loops)
    spent = per_step(analysis, loops)
    return Hit(
        message=(
            f"{count(round(products))} small `{name}` calls a step, {count(repeats)} in a row, "
            f"are made one by one and then joined: {duration(spent)} on the host "
            f"({percent(min(share, 1.0))} of the step)."
        ),
        evidence=(
            Evidence("products_per_step", round(products, 1), "count"),
            Evidence("products_in_a_row", repeats, "count"),
            Evidence("loop_time", spent, "ns"),
        ),
        locations=loop_places(analysis, loops, calls=(name,)),
        fix=_ONE_LAYER if _one_layer(trace, loops[0]) else _SEVERAL_LAYERS,
        gain=collapse_gain(analysis, loops),
        confidence=0.7,
        claims=host_time(loops),
    )


def _one_layer(trace: Trace, loop: Loop) -> bool:
    """Is one module called in all iterations, with the same weights?"""
    module = trace.tree.module[loop.position(0)]
    names = trace.column("name_id")[trace.tree.rows[np.maximum(module, 0)]]
    return bool((module >= 0).all() and np.unique(names).size == 1)


def _heads(t: TraceBuilder, *, joined: bool) -> None:
    for step in range(4):
        at = step * 4_000
        t.step(at, 3_990)
        t.python("train.py(10): forward", at + 1, 3_980)
        for i in range(40):
            begin = at + 10 + 50 * i
            t.module(f"Linear_{i}", begin, 45)
            t.op("aten::linear", begin + 2, 40, dims=[[64, 128], [128, 128], [128]])
            t.op("aten::addmm", begin + 8, 30, dims=[[128], [64, 128], [128, 128]])
            t.kernel("gemm", begin + 30, 4, launch_at=begin + 20)
        if joined:
            parts: list[list[int]] = [[], []]
            t.op("aten::stack", at + 2_020, 60, dims=parts, types=["TensorList", "Scalar"])
        t.sync(at + 2_100, 30)


def _parallel(t: TraceBuilder) -> None:
    _heads(t, joined=True)


def _layers(t: TraceBuilder) -> None:
    _heads(t, joined=False)


RULE = Rule(
    code="CP214",
    name="tiny-gemm-loop",
    class_="compute",
    summary="A Python loop makes many small matrix products that one batched product could do.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops", "shapes"}),
    evidence="E",
    references=(_BMM, "https://docs.pytorch.org/docs/stable/generated/torch.vmap.html"),
    examples=(
        Example("forty heads called one by one and stacked", _parallel, fires=True),
        Example("forty layers, one after the other", _layers, fires=False),
    ),
)
