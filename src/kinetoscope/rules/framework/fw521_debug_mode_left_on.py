"""Anomaly detection is on.

## What it finds
The traces of `torch.autograd.set_detect_anomaly(True)` or `detect_anomaly()`: after each backward
node the gradients are tested for NaN and the result is read by the host, and each forward
operator stores a formatted Python stack.

## Why it matters
Each test is three operators and a wait for the device, for every node of the graph; each stack
costs the host some hundred microseconds. A training step takes two to four times as long.

## How to fix it
Remove `set_detect_anomaly(True)`, or switch it on only to reproduce a NaN that was seen. To notice
NaN in production, test the loss once every hundred steps.

## Limits
In an explicit debugging session the cost is the price of the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Intervals, measure, merge, union
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Location
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._waiting import calls_inside
from kinetoscope.trace.frames import (
    is_anomaly_frame,
    is_anomaly_switch,
    is_autograd_wait,
    is_engine_call,
)
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_TESTS = frozenset(("isnan", "_is_any_true", "any", "item", "is_nonzero"))


class Thresholds(Options, frozen=True):
    """When the tests are taken for anomaly detection."""

    min_tested: float = 0.3
    """Backward nodes that are followed by a NaN test; anomaly detection tests all that have
    gradients, a program's own check tests a few."""
    min_nodes: int = 3
    """Backward nodes that must have been recorded."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Count NaN tests inside the engine's nodes, and replay without them and the stacks."""
    tests, nodes, tested = _tests(analysis)
    if nodes < options.min_nodes or tested < options.min_tested * nodes:
        return
    stacks = analysis.extent(analysis.in_steps(analysis.matching(is_anomaly_frame)))
    testing = analysis.extent(tests)
    both = merge(testing, stacks)
    inside = calls_inside(analysis, tests)
    per_step = measure(both) // analysis.steps_on_host
    yield Hit(
        message=(
            f"Anomaly detection is on: {percent(min(tested / nodes, 1.0))} of the backward nodes "
            f"are followed by a NaN test that the host waits for; this takes "
            f"{duration(per_step)} of each step."
        ),
        evidence=(
            Evidence("tests_per_step", round(tested / analysis.steps_on_host, 1), "count"),
            Evidence("tested_nodes", round(min(tested / nodes, 1.0), 6), "ratio", "derived"),
            Evidence("anomaly_time", per_step, "ns"),
        ),
        locations=_places(analysis, tests),
        fix=Fix(
            summary="Switch anomaly detection off.",
            snippet="torch.autograd.set_detect_anomaly(False)",
            reference="https://docs.pytorch.org/docs/stable/autograd.html"
            "#torch.autograd.detect_anomaly",
        ),
        gain=analysis.gain(
            Change(unblock=inside, drop_calls=inside, host_cut=both, host_cut_factor=_CAUTIOUS),
            Change(unblock=inside, drop_calls=inside, host_cut=both),
            Change(
                unblock=inside,
                drop_calls=inside,
                host_cut=both if measure(stacks) else merge(both, _recording(analysis)),
            ),
        ),
        confidence=0.9,
        claims=both,
        at_least="high",
    )


def _tests(analysis: Analysis) -> tuple[IntArray, int, int]:
    """Rows of the operators of the tests, number of backward nodes, number of tested ones."""
    trace, tree = analysis.trace, analysis.trace.tree
    names = trace.column("name_id")[tree.rows]
    table = trace.name_flags(lambda n: short_name(n) in _TESTS)
    isnan = trace.name_flags(lambda n: short_name(n) == "isnan")
    engine = trace.name_flags(is_engine_call)
    low, high = analysis.times.host_window
    inside = (tree.start >= low) & (tree.start < high)
    backward = (trace.links.backward_root >= 0) & (tree.kind == Kind.CPU_OP) & inside
    rows = tree.rows[backward & table[names]]
    nodes = int((engine[names] & inside).sum())
    tested = np.unique(trace.links.backward_root[backward & isnan[names]])
    return rows, nodes, int(tested.size)


def _places(analysis: Analysis, tests: IntArray) -> tuple[Location, ...]:
    """Where the mode was switched on or, when that was before the recording, the backward call."""
    for test, calls in (
        (is_anomaly_switch, ("detect_anomaly", "set_detect_anomaly")),
        (is_autograd_wait, ("backward", "grad")),
    ):
        rows = analysis.matching(test)
        found = analysis.locations(rows, calls=calls) if rows.size else ()
        if found:
            return found
    return analysis.locations(tests)


def _recording(analysis: Analysis) -> Intervals:
    """Host time of the forward operators that made a backward node: they stored a stack."""
    trace = analysis.trace
    forward = np.flatnonzero((trace.column("kind") == Kind.CPU_OP) & (trace.column("seq") >= 0))
    node = trace.tree.node_of[forward]
    backward = trace.links.backward_root[np.maximum(node, 0)] >= 0
    rows = analysis.in_steps(forward[(node >= 0) & ~backward])
    own = np.isin(analysis.activity.row, rows)
    start, end = analysis.activity.start[own], analysis.activity.end[own]
    long = end - start > _STACK_NS
    return union(start[long], end[long])


_CAUTIOUS = 0.8
"""Part of the tests and stacks that goes away at the cautious end."""
_STACK_NS = 50_000
"""Operators without a stored stack have less self time on the host than this."""


def _anomaly(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 5_000.0
        t.step(at, 5_000)
        t.python("train.py(10): step", at + 5, 4_990)
        for i in range(10):
            t.op("aten::mm", at + 10 + i * 60, 50, seq=step * 10 + i)
            t.kernel("gemm", at + 40 + i * 60, 20, launch_at=at + 30 + i * 60)
        for i in range(10):
            begin = at + 700 + i * 400
            t.backward("MmBackward0", begin, 380, seq=step * 10 + 9 - i)
            t.kernel("gemm", begin + 40, 20, launch_at=begin + 10, tid=1001)
            t.op("aten::isnan", begin + 100, 30, tid=1001)
            t.op("aten::_is_any_true", begin + 140, 30, tid=1001)
            t.op("aten::item", begin + 180, 190, tid=1001)


def _own_check(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 5_000.0
        t.step(at, 5_000)
        for i in range(10):
            begin = at + 700 + i * 400
            t.backward("MmBackward0", begin, 380, seq=step * 10 + 9 - i)
            t.kernel("gemm", begin + 40, 20, launch_at=begin + 10, tid=1001)
        t.op("aten::isnan", at + 4_800, 30)
        t.op("aten::item", at + 4_850, 30)


RULE = Rule(
    code="FW521",
    name="debug-mode-left-on",
    class_="framework",
    summary="Autograd's anomaly detection is on.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops"}),
    evidence="TE",
    references=(
        "https://docs.pytorch.org/docs/stable/autograd.html#torch.autograd.detect_anomaly",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    ),
    examples=(
        Example("a NaN test after each backward node", _anomaly, fires=True),
        Example("one NaN test of the loss a step", _own_check, fires=False),
    ),
)
