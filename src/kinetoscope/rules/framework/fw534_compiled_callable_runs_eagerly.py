"""A compiled function runs as ordinary eager operators.

## What it finds
Inside the calls of a `torch.compile`d function there are plain operators and no compiled code at
all: Dynamo has given the function up, whatever becomes of others. Or there is a graph, and its
backend runs that as it is (`backend="eager"`, `"aot_eager"`).

## Why it matters
The program pays for guards and wrappers and gets nothing: every operator costs the host as much as
before, and pointwise operators read and write all of their data one by one, where compiled code
would do them in one pass. It happens without an error: a break inside a loop makes Dynamo skip the
whole function, and after too many recompilations it falls back to eager code.

## How to fix it
`torch.compile(model, fullgraph=True)` shows the reason as an error. Usually it is an `.item()`, a
`print` or an `if` on a tensor inside a `for` loop: move it out of the loop, or write it with
tensors (`torch.where`). `TORCH_LOGS=graph_breaks,recompiles` names the line. Backends for debugging
go back to the default one, which fuses.

## Limits
`torch.compiler.disable` and `set_stance("force_eager")` do this on purpose. How much faster the
compiled function would be is estimated: a part of the host time of its operators, and each run of
pointwise operators, with what only moves elements (`roll`, padding), as one kernel. The range is
wide. "Compile it" is no advice here, so CP212 leaves these chains to this finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.chains import Chains, pointwise_chains
from kinetoscope.metrics.device_ops import Flags, device_ops
from kinetoscope.metrics.intervals import Intervals, clip, intersect, measure, merge, points_in
from kinetoscope.metrics.waits import Wait, Waits
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Location
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._fallback import backward_of, saved_by_compiling
from kinetoscope.rules.framework._waiting import avoidable
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.compiled_frames import (
    is_compiled_code,
    is_dynamo_wrapper,
    is_graph_interpreter,
    is_inductor_code,
)
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


_GIVEN_UP = Fix(
    summary="Compile with fullgraph=True to see why Dynamo gave the function up; most often a read "
    "or a print inside a loop.",
    snippet="model = torch.compile(model, fullgraph=True)",
    reference=_URL,
)
_BACKEND = Fix(
    summary="Compile with the default backend: `eager` and `aot_eager` are there for debugging and "
    "run the graph operator by operator.",
    snippet="model = torch.compile(model)  # not backend='aot_eager'",
    reference="https://docs.pytorch.org/docs/stable/torch.compiler.html",
)


class Thresholds(Options, frozen=True):
    """When a compiled function is called eager."""

    min_ops: int = 5
    """Plain operators directly inside one call; the wrapper itself issues one or two."""
    cautious: float = 0.3
    """Part of the host time that compiling saves at the cautious end."""
    passes: tuple[float, float, float] = (2.0, 1.15, 0.6)
    """Time of a fused kernel over that of the longest kernel which it replaces: at worst it reads
    further tensors; the longest one reads two and writes one."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Look for wrappers with operators that nothing fuses; replay them as compiled code."""
    for calls in _eager_calls(analysis):
        if calls.wrappers.size and calls.ops.size >= options.min_ops * calls.wrappers.size:
            yield _hit(analysis, calls, options)


@dataclass(frozen=True)
class _Calls:
    """Outermost wrappers in the steady steps, and the operators that Python calls in them.

    `interpreted`: Dynamo made a graph of the function, and its backend runs that as it is.
    """

    wrappers: IntArray
    ops: IntArray
    interpreted: bool


def _hit(analysis: Analysis, calls: _Calls, options: Thresholds) -> Hit:
    inside = clip(analysis.extent(calls.wrappers), *analysis.times.host_window)
    kernels = _launched(analysis, calls.wrappers)
    device = analysis.extent(analysis.get(device_ops).rows[kernels])
    waits = _waits(analysis, inside)
    steps = analysis.steps_on_host
    device_ns = measure(device) // steps
    how = "a graph that nothing fuses" if calls.interpreted else "no compiled region"
    return Hit(
        message=(
            f"A compiled function runs eagerly: its {calls.wrappers.size / steps:,.0f} calls a "
            f"step issue {calls.ops.size / steps:,.0f} plain operators and {how}, "
            f"{duration(measure(inside) // steps)} of host time."
        ),
        evidence=(
            Evidence("eager_operators_per_step", round(calls.ops.size / steps, 1), "count"),
            *(() if calls.interpreted else (Evidence("compiled_regions", 0, "count"),)),
            Evidence("host_time", measure(inside) // steps, "ns"),
            *((Evidence("device_time", device_ns, "ns"),) if device_ns else ()),
        ),
        locations=_places(analysis, calls.ops, waits.op),
        fix=_BACKEND if calls.interpreted else _GIVEN_UP,
        gain=analysis.gain(*_changes(analysis, calls, kernels, waits.calls, options)),
        confidence=0.9,
        claims=merge(inside, device),
        at_least="medium",
    )


def _changes(
    analysis: Analysis,
    calls: _Calls,
    kernels: Flags,
    waits: IntArray,
    options: Thresholds,
) -> tuple[Change, Change, Change]:
    """The calls at the usual price of compiled ones, with their pointwise kernels fused.

    At the cautious end no wait goes away, but a part of the host time.
    """
    whole = merge(analysis.extent(calls.wrappers), backward_of(analysis, calls.wrappers))
    launching = intersect(whole, analysis.host_time.launching)
    work = analysis.get(device_ops)
    chains = pointwise_chains(work, moves=True)
    low, mid, high = (_fused(chains, kernels, passes) for passes in options.passes)
    gone = np.union1d(waits, high.drop_calls if high.drop_calls is not None else waits)
    left = np.setdiff1d(work.call[kernels], gone).size
    # The price of a compiled call is one without the profiler.
    unprofiled = measure(launching) * analysis.step_time.mid / max(analysis.step_ns, 1)
    saved = saved_by_compiling(unprofiled, calls.wrappers.size, left)
    return (
        replace(low, host_cut=launching, host_cut_factor=options.cautious),
        replace(mid, host_cut=launching, host_cut_factor=saved, unblock=waits),
        replace(high, host_cut=launching, unblock=waits, drop_calls=gone),
    )


def _waits(analysis: Analysis, inside: Intervals) -> Waits:
    """Waits for the device inside the calls."""
    waits = avoidable(analysis, Wait.SCALAR, Wait.SHAPE, Wait.EXPLICIT)
    return waits.where(points_in(inside, analysis.trace.column("ts_ns")[waits.call]))


def _fused(chains: Chains, kernels: Flags, passes: float) -> Change:
    """Each chain among these kernels as its first one, which takes as long as this many passes."""
    mine = kernels[chains.members]
    member, number = chains.members[mine], chains.chain[mine]
    first = np.append(True, np.diff(number) > 0)[: member.size]
    ns = np.minimum(passes * chains.longest_ns(), chains.total_ns())[number[first]]
    calls = np.setdiff1d(chains.work.call[member[~first]], chains.work.call[member[first]])
    return Change(
        durations=(chains.work.rows[member[first]], ns.astype(np.int64)),
        drop_calls=calls[calls >= 0],
    )


def _launched(analysis: Analysis, wrappers: IntArray) -> Flags:
    """Which device events come from inside these calls, or from the backward pass of that."""
    work, tree = analysis.get(device_ops), analysis.trace.tree
    flags = np.zeros(tree.rows.size, dtype=bool)
    flags[tree.node_of[wrappers]] = True
    inside = nearest(flags, tree.parent) >= 0
    return np.asarray((work.anchor >= 0) & inside[np.maximum(work.anchor, 0)])


def _eager_calls(analysis: Analysis) -> Iterator[_Calls]:
    """Calls of functions that Dynamo gave up, and of those whose backend fuses nothing.

    Nothing where a compiler was at work, as the code is not ready then.
    """
    trace, tree = analysis.trace, analysis.trace.tree
    flags = trace.name_flags(is_dynamo_wrapper)
    if not flags.any() or analysis.in_steps(analysis.rows(Kind.COMPILE)).size:
        return
    if any(is_compile_frame(name) for name in trace.names):
        return
    names = trace.column("name_id")[tree.rows]
    wrapper = nearest(flags[names] & np.isin(tree.kind, (Kind.PYTHON, Kind.MODULE)), tree.parent)
    above = np.where(tree.parent >= 0, wrapper[np.maximum(tree.parent, 0)], -1)
    outermost = (wrapper == np.arange(wrapper.size)) & (above < 0)
    outer = nearest(outermost, tree.parent)

    def holding(test: Callable[[str], bool]) -> Flags:
        mine = outer[trace.name_flags(test)[names]]
        return np.isin(np.arange(outer.size), mine[mine >= 0])

    fused, graph = holding(is_inductor_code), holding(is_graph_interpreter)
    aten = trace.name_flags(lambda n: n.startswith("aten::"))[names]
    around = np.where(tree.parent >= 0, tree.op[np.maximum(tree.parent, 0)], -1)
    direct = aten & (tree.kind == Kind.CPU_OP) & ((around < 0) | ~aten[around]) & (outer >= 0)
    for interpreted, eager in (
        (False, outermost & ~holding(is_compiled_code)),
        (True, outermost & graph & ~fused),
    ):
        yield _Calls(
            analysis.in_steps(np.sort(tree.rows[eager])),
            analysis.in_steps(np.sort(tree.rows[direct & eager[np.maximum(outer, 0)]])),
            interpreted,
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
