"""A compiled function runs as ordinary eager operators.

## What it finds
Inside the call of a `torch.compile`d function there are plain operators and no compiled region at
all: Dynamo has given the function up.

## Why it matters
The program pays for guards and wrappers and gets nothing. It happens without an error: a break
inside a loop makes Dynamo skip the whole function, and after too many recompilations it falls
back to eager code.

## How to fix it
`torch.compile(model, fullgraph=True)` shows the reason as an error. Usually it is an `.item()`, a
`print` or an `if` on a tensor inside a `for` loop: move it out of the loop, or write it with
tensors (`torch.where`). `TORCH_LOGS=graph_breaks,recompiles` names the line.

## Limits
`torch.compiler.disable` and `set_stance("force_eager")` do this on purpose. How much faster the
compiled function would be is estimated from the host time of its operators; the range is wide.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import clip, intersect, measure
from kinetoscope.metrics.waits import Wait
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Location
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._compiling import regions
from kinetoscope.rules.framework._waiting import avoidable
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.compiled_frames import is_dynamo_wrapper
from kinetoscope.trace.frames import is_compile_frame
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_URL = (
    "https://docs.pytorch.org/docs/main/user_guide/torch_compiler/compile/"
    "programming_model.fullgraph_true.html"
)


class Thresholds(Options, frozen=True):
    """When a compiled function is called eager."""

    min_ops: int = 5
    """Plain operators directly inside one call; the wrapper itself issues one or two."""
    cautious: float = 0.3
    """Part of the host time that compiling saves at the cautious end."""
    likely: float = 0.65
    """Part that it saves at the likely one: fused kernels, no Python."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Look for wrappers with operators and without regions; replay with less host work."""
    wrappers, ops = _eager_calls(analysis)
    if wrappers.size == 0 or ops.size < options.min_ops * wrappers.size:
        return
    inside = clip(analysis.extent(wrappers), *analysis.times.host_window)
    launching = intersect(inside, analysis.host_time.launching)
    waits = avoidable(analysis, Wait.SCALAR, Wait.SHAPE, Wait.EXPLICIT)
    steps = analysis.steps_on_host
    yield Hit(
        message=(
            f"A compiled function runs eagerly: its {wrappers.size / steps:,.0f} calls a step "
            f"issue {ops.size / steps:,.0f} plain operators and no compiled region, "
            f"{duration(measure(inside) // steps)} of host time."
        ),
        evidence=(
            Evidence("eager_operators_per_step", round(ops.size / steps, 1), "count"),
            Evidence("compiled_regions", 0, "count"),
            Evidence("host_time", measure(inside) // steps, "ns"),
        ),
        locations=_places(analysis, ops, waits.op),
        fix=Fix(
            summary="Compile with fullgraph=True to see why Dynamo gave the function up; most "
            "often a read or a print inside a loop.",
            snippet="model = torch.compile(model, fullgraph=True)",
            reference=_URL,
        ),
        gain=analysis.gain(
            Change(host_cut=launching, host_cut_factor=options.cautious),
            Change(host_cut=launching, host_cut_factor=options.likely, unblock=waits.calls),
            Change(host_cut=launching, unblock=waits.calls, drop_calls=waits.calls),
        ),
        confidence=0.9,
        claims=inside,
        at_least="medium",
    )


def _eager_calls(analysis: Analysis) -> tuple[IntArray, IntArray]:
    """Rows of the outermost wrappers of the steady steps, and of the operators right inside.

    Nothing when any compiled region ran, or a compiler was at work.
    """
    trace, tree = analysis.trace, analysis.trace.tree
    none = np.empty(0, dtype=np.int64)
    flags = trace.name_flags(is_dynamo_wrapper)
    if not flags.any() or analysis.in_steps(analysis.get(regions).row).size:
        return none, none
    if analysis.in_steps(analysis.rows(Kind.COMPILE)).size:
        return none, none
    if any(is_compile_frame(name) for name in trace.names):
        return none, none
    names = trace.column("name_id")[tree.rows]
    wrapper = nearest(flags[names] & np.isin(tree.kind, (Kind.PYTHON, Kind.MODULE)), tree.parent)
    above = np.where(tree.parent >= 0, wrapper[np.maximum(tree.parent, 0)], -1)
    aten = trace.name_flags(lambda n: n.startswith("aten::"))
    direct = tree.outer_ops & aten[names] & (wrapper >= 0)
    outermost = (wrapper == np.arange(wrapper.size)) & (above < 0)
    return (
        analysis.in_steps(np.sort(tree.rows[outermost])),
        analysis.in_steps(np.sort(tree.rows[direct])),
    )


def _places(analysis: Analysis, ops: IntArray, waits: IntArray) -> tuple[Location, ...]:
    """The function with most of the operators, and where it waits: the usual cause."""
    found = analysis.locations(waits, calls=("item", "tolist"), top=1) if waits.size else ()
    known = {(place.file, place.function) for place in found}
    more = analysis.locations(ops, top=2)
    return found + tuple(p for p in more if (p.file, p.function) not in known)


def _skipped(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 2_000.0
        t.step(at, 2_000)
        t.python("torch/_dynamo/eval_frame.py(800): compile_wrapper", at + 5, 1_990)
        t.python("model.py(10): forward", at + 10, 1_980)
        for i in range(40):
            begin = at + 20 + i * 48
            t.kernel("gemm", begin + 20, 5, launch_at=begin + 10, op="aten::linear")


def _compiled(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 2_000.0
        t.step(at, 2_000)
        t.python("torch/_dynamo/eval_frame.py(800): compile_wrapper", at + 5, 1_990)
        t.op("Torch-Compiled Region: 0/0", at + 10, 1_980)
        for i in range(40):
            begin = at + 20 + i * 48
            t.kernel("triton_poi_fused", begin + 20, 5, launch_at=begin + 10)


RULE = Rule(
    code="FW534",
    name="compiled-callable-runs-eagerly",
    class_="framework",
    summary="A compiled function runs as ordinary eager operators.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"stacks", "ops"}),
    evidence="TE",
    references=(_URL,),
    examples=(
        Example("forty plain operators inside a compiled call", _skipped, fires=True),
        Example("a compiled region inside the call", _compiled, fires=False),
    ),
)
