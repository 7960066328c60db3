"""Autocast converts the same weights again and again.

## What it finds
Matrix products and convolutions under `torch.autocast` that convert their weight first: in
inference in every forward pass, in training more than once a step for the same module.

## Why it matters
Autocast keeps converted weights only until its outermost region ends, and only those that need a
gradient. Each conversion reads the weight in 32 bits and writes it in 16, which for small batches
is more traffic than the product itself, and it costs three operators of host time.

## How to fix it
For inference store the weights in 16 bits: `model.to(torch.bfloat16)`, without autocast. For
training put one autocast region around the whole forward pass, with the cache left on.

## Limits
The conversion of inputs is needed and does not count. In training one conversion of each weight a
step is needed, since the optimizer has changed it; telling modules apart wants Python stacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import args_of, dense, device_ops
from kinetoscope.metrics.intervals import measure
from kinetoscope.metrics.phase import trains
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import with_step
from kinetoscope.rules.framework._surroundings import steady_extent
from kinetoscope.rules.framework._waiting import calls_inside
from kinetoscope.trace.kinds import Family, Kind
from kinetoscope.trace.op_names import op_families, short_name
from kinetoscope.trace.trace import IntArray, Trace
from kinetoscope.units import duration, how_often, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_PRODUCTS = (Family.GEMM, Family.CONV, Family.RNN, Family.ATTENTION)


class Thresholds(Options, frozen=True):
    """When conversions are worth a word."""

    min_casts: int = 4
    """Needless conversions of weights in a step."""
    min_share: float = 0.03
    """Their time as a share of the step, on the host or on the device."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find the conversions inside products, and replay the steps without them."""
    casts = analysis.in_steps(analysis.get(weight_casts))
    training = analysis.get(trains)
    casts = _repeated(analysis, casts) if training else casts
    steps = analysis.steps_on_host
    if casts.size < options.min_casts * steps:
        return
    host, calls = steady_extent(analysis, casts), calls_inside(analysis, casts)
    work = analysis.get(device_ops)
    kernels = work.rows[np.isin(work.call, calls)]
    on_device = int(analysis.trace.column("dur_ns")[kernels].sum()) // steps
    on_host = measure(host) // steps
    share = max(on_device, on_host) / max(analysis.step_ns, 1)
    if share < options.min_share:
        return
    yield Hit(
        message=(
            f"Autocast converts weights {how_often(casts.size / steps)} a step that it "
            f"converted before: {duration(on_host)} on the host"
            + (f", {duration(on_device)} on the device" if analysis.device else "")
            + f" ({percent(min(share, 1.0))} of the step)."
        ),
        evidence=(
            Evidence("needless_casts", round(casts.size / steps, 1), "count"),
            Evidence("host_time", on_host, "ns"),
            Evidence("device_time", on_device, "ns"),
        ),
        locations=with_step(analysis, analysis.locations(casts, top=2), casts),
        fix=_fix(training=training),
        gain=analysis.gain(
            Change(host_cut=host, host_cut_factor=0.8, drop_calls=calls),
            Change(host_cut=host, drop_calls=calls),
        ),
        confidence=0.9,
        claims=analysis.extent(analysis.in_window(kernels)) if on_device > on_host else host,
    )


def _fix(*, training: bool) -> Fix:
    if training:
        return Fix(
            summary="Put one autocast region around the whole forward pass and leave its cache on.",
            snippet="with torch.autocast(device, torch.bfloat16):   # cache_enabled=True\n"
            "    loss = criterion(model(x), y)",
            reference="https://docs.pytorch.org/docs/stable/amp.html",
        )
    return Fix(
        summary="Store the weights in 16 bits in place of converting them in each request.",
        snippet="model = model.to(torch.bfloat16)\noutput = model(x.to(torch.bfloat16))",
        reference="https://docs.pytorch.org/docs/stable/amp.html",
    )


def weight_casts(trace: Trace) -> IntArray:
    """Rows of the conversions that a product makes of another argument than its input.

    Autocast runs before the operator proper: its `aten::to` is a child of the operator, which is
    then called once more inside.
    """
    tree = trace.tree
    if tree.rows.size == 0:
        return tree.rows
    name = trace.column("name_id")[tree.rows]
    cast = trace.name_flags(lambda n: short_name(n) in ("to", "_to_copy"))
    product = np.isin(op_families(trace), _PRODUCTS)
    above = np.maximum(tree.parent, 0)
    nodes = np.flatnonzero(cast[name] & (tree.kind == Kind.CPU_OP) & (tree.parent >= 0))
    parent = above[nodes]
    nodes = nodes[product[name[parent]] & (tree.kind[parent] == Kind.CPU_OP)]
    dims = trace.column("dims_id")
    one, other = (dims[tree.rows[n]].astype(np.int64) for n in (nodes, above[nodes]))
    _, first, which = np.unique(
        one * (len(trace.texts) + 1) + other, return_index=True, return_inverse=True
    )
    weights = [_is_weight(trace, int(nodes[i]), int(above[nodes[i]])) for i in first]
    chosen = nodes[np.array(weights, dtype=bool)[which]] if first.size else nodes
    return np.asarray(tree.rows[chosen], dtype=np.int64)


def _is_weight(trace: Trace, cast: int, product: int) -> bool:
    """Is the converted tensor a later argument of the product, and not its input?"""
    rows = trace.tree.rows
    dims = args_of(trace, int(rows[cast])).dims
    others = args_of(trace, int(rows[product])).dims
    return bool(dims) and bool(dims[0]) and dims[0] in others[1:] and dims[0] != others[0]


def _repeated(analysis: Analysis, casts: IntArray) -> IntArray:
    """Conversions of a module's weight after the first one in a step; unknown modules: none."""
    trace, tree = analysis.trace, analysis.trace.tree
    module = tree.module[tree.node_of[casts]]
    known = module >= 0
    casts, module = casts[known], module[known]
    if casts.size == 0:
        return casts
    name = trace.column("name_id")[tree.rows[module]].astype(np.int64)
    step = trace.steps.of(trace.column("ts_ns")[casts])
    key = dense([step, name, trace.column("dims_id")[casts].astype(np.int64)])
    _, first = np.unique(key, return_index=True)
    return np.delete(casts, first)


def _serving(t: TraceBuilder, *, casts: bool) -> None:
    for step in range(4):
        at = step * 2_000.0
        t.step(at, 2_000)
        for i in range(10):
            begin = at + 10 + i * 190
            t.op("aten::linear", begin, 100, dims=[[4, 512], [1024, 512], [1024]])
            if casts:
                t.op("aten::to", begin + 5, 30, dims=[[1024, 512]])
                t.kernel("copy_kernel", begin + 20, 50, launch_at=begin + 12)
            t.kernel("gemm", begin + 75, 60, launch_at=begin + 50)


def _converts(t: TraceBuilder) -> None:
    _serving(t, casts=True)


def _in_16_bits(t: TraceBuilder) -> None:
    _serving(t, casts=False)


RULE = Rule(
    code="FW525",
    name="autocast-overhead",
    class_="framework",
    summary="Autocast converts the same weights again and again.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops", "shapes"}),
    evidence="ET",
    references=("https://docs.pytorch.org/docs/stable/amp.html",),
    examples=(
        Example("ten weights converted in each request", _converts, fires=True),
        Example("a model with weights of 16 bits", _in_16_bits, fires=False),
    ),
)
