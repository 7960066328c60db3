"""`torch.compile` compiles again and again while the program runs.

## What it finds
A compiler at work in the steady steps: in several steps, or for a function that has already been
compiled more than twice.

## Why it matters
A compilation takes from a tenth of a second to minutes, thousands of times as long as the step.
After eight compilations of one function Dynamo gives up and runs it eagerly from then on.

## How to fix it
Find out what changes: `TORCH_LOGS=recompiles` prints the guard that failed. For shapes:
`torch.compile(..., dynamic=True)`, `torch._dynamo.mark_dynamic(x, 0)`, or padding to a few sizes.
For Python numbers and attributes: pass them as tensors, or keep them constant. Raising
`torch._dynamo.config.recompile_limit` only hides the cause.

## Limits
The first compilation, and the second one in which Dynamo makes a shape dynamic, are normal and
not reported. Which guard failed is not in a recording. What the step takes once nothing is
compiled is estimated from what remains, or from a step without a compilation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Coverage, Intervals, clip, measure, merge, subtract, union
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._compiling import compilations, lookups, regions
from kinetoscope.trace.kinds import RUNTIME_KINDS, Kind
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_URL = (
    "https://docs.pytorch.org/docs/2.14/user_guide/torch_compiler/compile/"
    "programming_model.recompilation.html"
)


class Thresholds(Options, frozen=True):
    """When compiling is more than the start."""

    min_steps: int = 2
    """Recorded steps with a compilation, from which on it repeats."""
    min_version: int = 2
    """Number of a function's compilation from which on it repeats; Dynamo counts from 0, and 1
    is the normal change to dynamic shapes."""
    limit: int = 8
    """`torch._dynamo.config.recompile_limit`."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Add up the time in compilers, and replay the steps without it."""
    rows = analysis.in_steps(analysis.rows(Kind.COMPILE))
    if rows.size == 0:
        return
    compiling = analysis.extent(rows)
    steps = np.unique(analysis.trace.steps.of(compiling[0]))
    version = _latest(analysis)
    if steps.size < options.min_steps and version < options.min_version:
        return
    cold = _cold(analysis, compiling)
    calls = _calls(analysis, compiling)
    per_step = measure(compiling) // analysis.steps_on_host
    low, high = analysis.times.host_window
    share = measure(compiling) / max(high - low, 1)
    warm = _warm(analysis, cold, compiling)
    # At best the rest of the step is faster too: caches are cold after a compilation.
    whole = union(np.array([low]), np.array([high]))
    limit = (
        f" From {options.limit} on Dynamo runs it eagerly." if version + 1 >= options.limit else ""
    )
    yield Hit(
        message=(
            f"Compiling takes {duration(per_step)} of each step, "
            f"{percent(min(share, 1.0))} of it"
            + (f"; one function is in its {_ordinal(version + 1)} version." if version > 0 else ".")
            + limit
        ),
        evidence=(
            Evidence("compile_time", per_step, "ns"),
            Evidence("compile_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("steps_with_compilation", int(steps.size), "count"),
            Evidence("versions_of_one_function", version + 1, "count"),
        ),
        locations=analysis.locations(rows[:1]) or analysis.locations(analysis.get(regions).row),
        fix=Fix(
            summary="Make the compiled function accept what changes: dynamic shapes, or inputs "
            "padded to a few sizes. TORCH_LOGS=recompiles names the guard that failed.",
            snippet="model = torch.compile(model, dynamic=True)\n"
            "# or: torch._dynamo.mark_dynamic(batch, 0)",
            reference=_URL,
        ),
        gain=analysis.gain(
            Change(host_cut=cold, drop_calls=calls, step_floor_ns=4 * warm),
            Change(host_cut=cold, drop_calls=calls, step_floor_ns=warm),
            Change(host_cut=whole, drop_calls=calls, step_floor_ns=warm // 2),
        ),
        confidence=0.9,
        claims=cold,
    )


def _latest(analysis: Analysis) -> int:
    """Highest number of a compilation in the steady steps; -1 when none is recorded."""
    low, high = analysis.times.host_window
    ts = analysis.trace.column("ts_ns")
    latest = -1
    for found in (analysis.get(regions), analysis.get(compilations)):
        inside = (ts[found.row] >= low) & (ts[found.row] < high)
        latest = max(latest, int(found.version[inside].max(initial=-1)))
    return latest


def _calls(analysis: Analysis, compiling: Intervals) -> IntArray:
    """Runtime calls of the compiler: it tries kernels out on the device."""
    rows = analysis.in_steps(analysis.rows(*RUNTIME_KINDS))
    ts = analysis.trace.column("ts_ns")[rows]
    return rows[Coverage(compiling).between(ts, ts + 1) > 0]


def _cold(analysis: Analysis, compiling: Intervals) -> Intervals:
    """The compilations with what belongs to a first call.

    From the cache lookup that found nothing up to the end of the compiled region's first call,
    which loads the code.
    """
    trace = analysis.trace
    ts, dur = trace.column("ts_ns"), trace.column("dur_ns")
    low, high = analysis.times.host_window
    parts = [compiling]
    before = analysis.get(lookups)
    if before.size:
        at = np.searchsorted(ts[before], compiling[0], side="right") - 1
        start = np.where(at >= 0, ts[before[np.maximum(at, 0)]], compiling[0])
        start = np.where(compiling[0] - start < _ADJACENT_NS, start, compiling[0])
        parts.append(union(start, compiling[1]))
    calls = analysis.get(regions).row
    if calls.size:
        at = np.searchsorted(ts[calls], compiling[1], side="left")
        row = calls[np.minimum(at, calls.size - 1)]
        near = (at < calls.size) & (ts[row] - compiling[1] < _ADJACENT_NS)
        parts.append(union(compiling[1][near], (ts[row] + dur[row])[near]))
    return clip(merge(*parts), low, high)


_ADJACENT_NS = 5_000_000
"""A first call begins within this time after the compiler has finished."""


def _warm(analysis: Analysis, cold: Intervals, compiling: Intervals) -> int:
    """What a step costs at least once nothing is compiled, ns.

    The fastest step without a compilation; otherwise the launches of the compiled code at the
    usual price of a launch, with guards and wrappers.
    """
    edges = analysis.trace.steps.edges
    share = Coverage(cold).between(edges[:-1], edges[1:])
    if (share == 0).any():
        return int(np.diff(edges)[share == 0].min())
    rows = analysis.in_steps(analysis.rows(Kind.LAUNCH, Kind.COPY_CALL))
    ts = analysis.trace.column("ts_ns")[rows]
    left = Coverage(subtract(cold, compiling)).between(ts, ts + 1) > 0
    launches = int(left.sum()) / analysis.steps_on_host
    return int(_GUARDS_NS + launches * _LAUNCH_NS)


_GUARDS_NS = 80_000
"""Guards, wrappers and the Python around one compiled call: 20 to 60 µs each way."""
_LAUNCH_NS = 10_000
"""One launch from Inductor's wrapper code."""


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if 10 <= number % 100 <= 20 else ending}"


def _changing_shapes(t: TraceBuilder) -> None:
    for step in range(3):
        at = step * 500_000.0
        t.step(at, 500_000)
        t.op("TorchDynamo Cache Lookup", at + 10, 20)
        t.annotation("_compile.compile_inner (dynamo_timed)", at + 100, 490_000)
        t.op(f"Torch-Compiled Region: 0/{step + 3}", at + 490_200, 300)
        t.kernel("triton_poi_fused_0", at + 490_400, 50, launch_at=at + 490_300)


def _start(t: TraceBuilder) -> None:
    t.step(0, 500_000)
    t.annotation("_compile.compile_inner (dynamo_timed)", 100, 490_000)
    t.op("Torch-Compiled Region: 0/0", 490_200, 300)
    t.kernel("triton_poi_fused_0", 490_400, 50, launch_at=490_300)
    for step in range(3):
        at = 500_000.0 + step * 1_000
        t.step(at, 1_000)
        t.op("Torch-Compiled Region: 0/0", at + 20, 300)
        t.kernel("triton_poi_fused_0", at + 60, 900, launch_at=at + 50)


RULE = Rule(
    code="FW511",
    name="dynamo-recompiles",
    class_="framework",
    summary="torch.compile compiles again and again while the program runs.",
    check=check,
    options=Thresholds(),
    evidence="ET",
    references=(_URL,),
    examples=(
        Example("a compilation in every step", _changing_shapes, fires=True),
        Example("a compilation in the first step only", _start, fires=False),
    ),
)
