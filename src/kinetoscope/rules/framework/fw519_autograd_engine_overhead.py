"""The autograd engine's own work between the nodes slows the backward pass down.

## What it finds
A backward pass in which the engine's time around its nodes, operators left out and profiling
overhead taken off, is a tenth of it and more, while the device waits.

## Why it matters
Each node of the graph costs the engine a few microseconds, and each parameter one more for its
gradient. Models of many small operators have thousands of nodes.

## How to fix it
`torch.compile` turns the backward pass of a region into one node. Fewer, larger operators and
parameters help as well, and so does a CUDA graph of the whole step.

## Limits
A preview. In a launch-bound step FW501 says more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.data_loading._input import exposed_ratio
from kinetoscope.rules.framework._surroundings import (
    net_ns,
    outermost,
    own_stretches,
    steady_extent,
)
from kinetoscope.trace.frames import is_engine_call
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_URL = "https://docs.pytorch.org/docs/stable/generated/torch.compile.html"


class Thresholds(Options, frozen=True):
    """When the engine is worth a word."""

    min_backward_share: float = 0.1
    """Its own time as a share of the backward pass."""
    min_share: float = 0.05
    """And as a share of the likely step."""
    min_exposed: float = 0.3
    """Part of it in which the device is idle."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Add up what the engine does besides calling operators."""
    trace, tree = analysis.trace, analysis.trace.tree
    flag = trace.tree.named(is_engine_call)
    if not flag.any():
        return
    nodes = analysis.in_steps(tree.rows[outermost(trace, flag)])
    backward = steady_extent(analysis, nodes)
    own = own_stretches(analysis, flag)
    spent = net_ns(analysis, own)
    steps = analysis.steps_on_host
    whole = max(net_ns(analysis, backward), 1)
    share = spent / max(analysis.step_time.mid, 1)
    if spent < options.min_backward_share * whole or share < options.min_share:
        return
    if exposed_ratio(analysis, own) < options.min_exposed:
        return
    yield Hit(
        message=(
            f"The autograd engine spends {duration(spent)} of each step around its "
            f"{count(round(nodes.size / steps))} nodes, {percent(min(spent / whole, 1.0))} of the "
            "backward pass."
        ),
        evidence=(
            Evidence("engine_time", spent, "ns", "estimated"),
            Evidence("engine_recorded", measure(own) // steps, "ns"),
            Evidence("nodes", round(nodes.size / steps, 1), "count"),
        ),
        locations=analysis.locations(nodes, np.ones(nodes.size, dtype=np.int64)),
        fix=Fix(
            summary="Compile the model: its backward pass becomes one node.",
            snippet="model = torch.compile(model)",
            reference=_URL,
        ),
        gain=analysis.gain(
            Change(host_cut=own, host_cut_factor=0.3),
            Change(host_cut=own, host_cut_factor=0.7),
            Change(host_cut=own),
        ),
        confidence=0.4,
        claims=own,
        at_most="medium",
    )


def _busy_engine(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 3_000.0
        t.step(at, 3_000)
        for i in range(30):
            begin = at + 10 + i * 98
            wrapper = "autograd::engine::evaluate_function: AddmmBackward0"
            t.op(wrapper, begin, 95)
            t.op("AddmmBackward0", begin + 60, 30)
            t.kernel("gemm", begin + 75, 4, launch_at=begin + 66)


def _large_nodes(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 3_000.0
        t.step(at, 3_000)
        for i in range(3):
            begin = at + 10 + i * 980
            wrapper = "autograd::engine::evaluate_function: AddmmBackward0"
            t.op(wrapper, begin, 950)
            t.op("AddmmBackward0", begin + 5, 940)
            t.kernel("gemm", begin + 20, 950, launch_at=begin + 10)


RULE = Rule(
    code="FW519",
    name="autograd-engine-overhead",
    class_="framework",
    summary="The autograd engine's own work slows the backward pass down.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops"}),
    evidence="L",
    references=(_URL,),
    examples=(
        Example("thirty nodes with 65 µs of the engine's own", _busy_engine, fires=True),
        Example("three nodes of large operators", _large_nodes, fires=False),
    ),
    preview=True,
)
