"""Calling compiled code costs more than the compiled code is worth.

## What it finds
Cache lookups, guards and the wrappers around the regions of `torch.compile` that take a sizeable
part of the step, profiling overhead taken off.

## Why it matters
Each call of a compiled function checks its guards and passes several layers of Python: tens to
hundreds of microseconds, whatever the function does. For small functions that are called often
this is most of their time.

## How to fix it
Compile a larger region (the whole model or step rather than each layer), so that there are fewer
calls. `torch.compiler.set_stance("default", skip_guard_eval_unsafe=True)` skips most guards once
everything is warm. For serving, AOTInductor has neither guards nor Python.

## Limits
Without Python stacks only the lookup and torch's own marks are seen, which is a part of the cost.
Recording inflates exactly this kind of code; the range is wide.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Intervals, measure, merge
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._compiling import glue, lookups, regions
from kinetoscope.rules.framework._surroundings import (
    net_ns,
    own_stretches,
    steady_extent,
    within,
)
from kinetoscope.trace.compiled_frames import compiled_region, is_dynamo_glue, is_dynamo_wrapper
from kinetoscope.trace.frames import is_compile_frame, is_graph_call, is_torch_file, parse_frame
from kinetoscope.trace.kinds import Kind
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When the way into compiled code is worth a word."""

    min_share: float = 0.05
    """Its time as a share of the likely step."""
    min_calls: int = 4
    """Calls of compiled regions in a step; a single one is already as large as it gets."""
    cautious: float = 0.3
    """Part that goes away at the cautious end: fewer guards, the same wrappers."""
    likely: float = 0.7
    """Part at the likely one: fewer calls."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Add up what surrounds the compiled code."""
    trace = analysis.trace
    rows = analysis.in_steps(analysis.get(glue))
    if rows.size == 0 or analysis.in_steps(analysis.rows(Kind.COMPILE)).size:
        return
    steps = analysis.steps_on_host
    calls = analysis.in_steps(analysis.get(regions).row)
    looked = calls if calls.size else analysis.in_steps(analysis.get(lookups))
    if looked.size < options.min_calls * steps:
        return
    around = _around(analysis)
    spent = net_ns(analysis, around)
    share = spent / max(analysis.step_time.mid, 1)
    if share < options.min_share:
        return
    yield Hit(
        message=(
            f"Entering compiled code takes {duration(spent)} of each step ({percent(share)}): "
            f"guards and wrappers of {count(round(looked.size / steps))} calls."
        ),
        evidence=(
            Evidence("overhead_time", spent, "ns", "estimated"),
            Evidence("overhead_recorded", measure(around) // steps, "ns"),
            Evidence("compiled_calls", round(looked.size / steps, 1), "count"),
            Evidence("guard_time", measure(steady_extent(analysis, rows)) // steps, "ns"),
        ),
        locations=analysis.locations(looked, trace.column("dur_ns")[looked]),
        fix=Fix(
            summary="Compile one large region in place of many small ones, and skip the guards "
            "once all shapes were seen.",
            snippet="model = torch.compile(model)   # not each layer\n"
            'torch.compiler.set_stance("default", skip_guard_eval_unsafe=True)  # after warm-up',
            reference="https://docs.pytorch.org/docs/stable/generated/"
            "torch.compiler.set_stance.html",
        ),
        gain=analysis.gain(
            Change(host_cut=around, host_cut_factor=options.cautious),
            Change(host_cut=around, host_cut_factor=options.likely),
            Change(host_cut=around),
        ),
        confidence=0.7,
        claims=around,
        at_most="medium",
    )


def _around(analysis: Analysis) -> Intervals:
    """Lookups, torch's marks, and torch's Python around a region that is not the region's work."""
    trace, tree = analysis.trace, analysis.trace.tree
    entered = within(
        trace,
        trace.tree.named(lambda n: is_dynamo_wrapper(n) or compiled_region(n) is not None),
    )
    inside = within(trace, trace.tree.named(is_graph_call))
    op = np.where(tree.op >= 0, tree.op, 0)
    own = trace.tree.named(lambda n: is_dynamo_glue(n) or compiled_region(n) is not None)
    in_operator = (tree.op >= 0) & ~own[op] if tree.rows.size else entered
    python = trace.tree.named(_is_wrapping) & (tree.kind == Kind.PYTHON)
    wrapping = own_stretches(analysis, entered & python & ~inside & ~in_operator)
    return merge(steady_extent(analysis, analysis.get(glue)), wrapping)


def _is_wrapping(name: str) -> bool:
    """Torch's own Python (or its C code), the compiler at work left out."""
    if is_compile_frame(name):
        return False
    frame = parse_frame(name)
    return is_torch_file(frame.file) if frame else name.startswith("<built-in ")


def _calls(t: TraceBuilder, calls: int, work: float) -> None:
    for step in range(4):
        at = step * 2_000.0
        t.step(at, 2_000)
        t.python("train.py(10): step", at + 2, 1_990)
        each = 1_900 / calls
        for i in range(calls):
            begin = at + 10 + i * each
            t.op("TorchDynamo Cache Lookup", begin, each - work - 20)
            t.op("Torch-Compiled Region: 0/0", begin + each - work - 15, work + 10)
            t.kernel("triton", begin + each - work + 5, work, launch_at=begin + each - work - 10)


def _many(t: TraceBuilder) -> None:
    _calls(t, 20, 20)


def _one(t: TraceBuilder) -> None:
    _calls(t, 1, 1_830)


RULE = Rule(
    code="FW515",
    name="guard-and-wrapper-overhead",
    class_="framework",
    summary="Guards and wrappers around compiled code take a sizeable part of the step.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops"}),
    evidence="E",
    references=(
        "https://docs.pytorch.org/docs/stable/generated/torch.compiler.set_stance.html",
        "https://docs.pytorch.org/docs/stable/torch.compiler_aot_inductor.html",
    ),
    examples=(
        Example("twenty small compiled functions a step", _many, fires=True),
        Example("one compiled function for the whole step", _one, fires=False),
    ),
)
