"""A compiled function reached its limit of compilations and runs eagerly from then on.

## What it finds
Calls of a compiled function in which Dynamo looks for a version that fits, finds none, compiles
none, and runs the function as it was written: it was compiled as often as is allowed (eight times).

## Why it matters
At the limit Dynamo gives up without an error. All the time in the compiler was spent for nothing:
the rest of the run is eager, with the cost of the lookup on top.

## How to fix it
Remove what makes the versions differ; `TORCH_LOGS=recompiles` names the guard.
`torch._dynamo.config.recompile_limit` only moves the end.

## Limits
Where compiled calls were recorded as well, what an eager call takes once it is compiled is taken
from them; their inputs may be smaller. Where none was, the limit was reached before, and the price
of a compiled call is a usual one; on a CPU, or without stacks, perhaps nothing is gained.
`set_stance("eager_on_recompile")` does the same on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import measure, union
from kinetoscope.result import Evidence, Fix, Gain
from kinetoscope.result.finding import NO_GAIN
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._compiling import compilations, compiled_calls, lookups, regions
from kinetoscope.rules.framework._fallback import (
    compiled_gain,
    fallback,
    gain_by_others,
    launched,
    stretches,
)
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_URL = (
    "https://docs.pytorch.org/docs/2.14/user_guide/torch_compiler/compile/"
    "programming_model.recompilation.html"
)
_FIX = Fix(
    summary="Remove what makes the versions differ: dynamic shapes, tensors in place of Python "
    "numbers and attributes that change. TORCH_LOGS=recompiles names the guard that failed.",
    snippet="model = torch.compile(model, dynamic=True)\n"
    '# or: self.register_buffer("steps", torch.zeros(()))  # not self.steps = 0',
    reference=_URL,
)
_SPREAD = 0.15
"""Spread of the ratio of two medians over a few steps."""


class Thresholds(Options, frozen=True):
    """What is a fallback."""

    limit: int = 8
    """`torch._dynamo.config.recompile_limit`."""
    min_eager_steps: int = 2
    """Steps after the last compiled call in which Dynamo looked for a version."""
    min_eager_calls: int = 2
    """Calls in the steady steps that found no version, where others run compiled."""
    min_ops: int = 5
    """Operators inside an eager call; the wrapper itself issues one or two."""
    left: tuple[float, float, float] = (3.0, 1.5, 1.0)
    """Time of such a call, once compiled, over that of the longest compiled call: its inputs may be
    larger than those of any version that there is."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Follow the functions that reached the limit: in whole steps, else call by call."""
    for kind in (_in_steps, _in_calls, _throughout):
        found = list(kind(analysis, options))
        if found:
            yield from found
            return


def _throughout(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Every call finds no version: the limit was reached before the recording."""
    found = fallback(analysis)
    if found is None or found.count < options.min_eager_calls:
        return
    if found.ops.size < options.min_ops * found.count:
        return
    cut = stretches(analysis, found)
    each = found.count / analysis.steps_on_host
    ops = found.ops.size / analysis.steps_on_host
    many = f", {count(round(ops))} operators a step" if found.framed else ""
    yield Hit(
        message=(
            f"The limit of compilations was reached before the recording: each call of a compiled "
            f"function ({count(round(each, 1))} a step) finds no version that fits and runs "
            f"eagerly{many}."
        ),
        evidence=(
            Evidence("eager_calls_per_step", round(each, 1), "count"),
            Evidence("compiled_calls_per_step", 0, "count"),
            Evidence("eager_operators_per_step", round(ops, 1), "count"),
            Evidence("host_time", measure(cut) // analysis.steps_on_host, "ns"),
        ),
        locations=analysis.locations(found.ops),
        fix=_FIX,
        gain=compiled_gain(analysis, found, cut),
        confidence=0.9,
        claims=cut,
        at_least="medium",
        keep=True,
    )


def _in_calls(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Calls that found no version, beside others that run compiled."""
    calls = analysis.get(compiled_calls)
    low, high = analysis.times.host_window
    inside = (calls.start >= low) & (calls.end <= high)
    eager, ready = inside & calls.eager, inside & calls.compiled
    if eager.sum() < options.min_eager_calls or not calls.compiled.any():
        return
    each = int(eager.sum()) / analysis.steps_on_host
    spent = calls.end - calls.start
    slow = int(np.median(spent[eager]))
    fast = int(np.median(spent[ready])) if ready.any() else 0
    yield Hit(
        message=(
            f"{count(round(each, 1))} calls of compiled functions a step find no version that fits "
            f"and run eagerly, as the limit of compilations is reached: {duration(slow)} each"
            + (f", compiled ones {duration(fast)}." if fast else ".")
        ),
        evidence=(
            Evidence("eager_calls_per_step", round(each, 1), "count"),
            Evidence("eager_call", slow, "ns"),
            *((Evidence("compiled_call", fast, "ns"),) if fast else ()),
        ),
        locations=analysis.locations(launched(analysis, calls, eager)),
        fix=_FIX,
        gain=gain_by_others(analysis, calls, (eager, ready), options.left) if fast else NO_GAIN,
        confidence=0.9,
        claims=union(calls.start[eager], calls.end[eager]),
        at_least="medium",
        keep=True,
    )


def _in_steps(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Whole steps that run eagerly, after others that ran compiled."""
    frame = _at_limit(analysis, options)
    if frame is None:
        return
    steps = analysis.trace.steps
    eager, compiled = _steps(analysis, frame)
    if eager.size < options.min_eager_steps:
        return
    lengths = np.diff(steps.edges)
    slow = int(np.median(lengths[eager]))
    fast = int(np.median(lengths[compiled])) if compiled.size else 0
    rows = analysis.get(regions).row[analysis.get(regions).frame == frame]
    yield Hit(
        message=(
            f"A compiled function was compiled {options.limit} times, the limit, and runs eagerly "
            f"in {count(int(eager.size))} of the recorded steps"
            + (f": {duration(slow)} in place of {duration(fast)}." if fast else ".")
        ),
        evidence=(
            Evidence("eager_steps", int(eager.size), "count"),
            Evidence("eager_step", slow, "ns"),
            *((Evidence("compiled_step", fast, "ns"),) if fast else ()),
        ),
        locations=analysis.locations(rows),
        fix=_FIX,
        gain=_gain(slow, fast),
        confidence=0.7,
        claims=union(steps.edges[eager], steps.edges[eager + 1]),
        at_least="medium",
        keep=True,
    )


def _at_limit(analysis: Analysis, options: Thresholds) -> int | None:
    """The function that was compiled as often as Dynamo allows; None: none was."""
    for found in (analysis.get(regions), analysis.get(compilations)):
        reached = found.frame[found.version >= options.limit - 1]
        if reached.size:
            return int(np.bincount(reached).argmax())
    return None


def _steps(analysis: Analysis, frame: int) -> tuple[IntArray, IntArray]:
    """Steps that look up but run nothing compiled, and those that run it without compiling."""
    trace = analysis.trace
    ts = trace.column("ts_ns")
    calls = analysis.get(regions)
    runs = np.unique(trace.steps.of(ts[calls.row[calls.frame == frame]]))
    anything = np.unique(trace.steps.of(ts[calls.row]))
    looks = np.unique(trace.steps.of(ts[analysis.get(lookups)]))
    compiles = np.unique(trace.steps.of(ts[analysis.rows(Kind.COMPILE)]))
    last = int(runs.max(initial=-1))
    eager = looks[(looks > last) & ~np.isin(looks, anything) & ~np.isin(looks, compiles)]
    return eager, runs[(runs >= 0) & ~np.isin(runs, compiles)]


def _gain(slow: int, fast: int) -> Gain:
    """Ratio of the steps as recorded; nothing is known without a compiled step."""
    if fast <= 0 or slow <= fast:
        return NO_GAIN
    ratio = slow / fast
    low, high = max(ratio * (1 - _SPREAD), 1.0), ratio * (1 + _SPREAD)
    return Gain(round(low, 3), round(ratio, 3), round(high, 3), basis="measured")


def _training(t: TraceBuilder, *, falls_back: bool) -> None:
    for step in range(8):
        at = step * 3_000.0
        eager = falls_back and step >= 3
        length = 3_000 if eager else 1_000
        t.step(at, length)
        t.op("TorchDynamo Cache Lookup", at + 5, 30)
        if eager:
            for i in range(8):
                t.kernel("eager", at + 50 + i * 350, 300, launch_at=at + 40 + i * 350)
        else:
            t.op("Torch-Compiled Region: 0/7", at + 40, 300)
            t.kernel("triton", at + 100, 850, launch_at=at + 60)


def _other_sizes(t: TraceBuilder) -> None:
    for step in range(6):
        at = step * 3_000.0
        t.step(at, 3_000)
        for i in range(2):
            begin = at + 10 + i * 400
            t.python("torch/_dynamo/eval_frame.py(956): compile_wrapper", begin, 300 + 2_200 * i)
            t.op("TorchDynamo Cache Lookup", begin + 5, 30)
            if i == 0:
                t.op(f"Torch-Compiled Region: 0/{step % 2}", begin + 40, 200)
                t.kernel("triton", begin + 80, 60, launch_at=begin + 60)
            for k in range(20 * i):
                t.kernel("eager", begin + 60 + k * 100, 95, launch_at=begin + 50 + k * 100)


def _counter(t: TraceBuilder, *, compiled: bool) -> None:
    for step in range(4):
        at = step * 4_000.0
        t.step(at, 4_000)
        for call in range(2):
            begin = at + 20 + call * 1_900
            t.python("torch/_dynamo/eval_frame.py(956): compile_wrapper", begin, 1_800)
            t.op("TorchDynamo Cache Lookup", begin + 5, 30)
            if compiled:
                t.op("Torch-Compiled Region: 0/7", begin + 40, 100)
                t.kernel("triton_poi_fused_0", begin + 90, 10, launch_at=begin + 80)
            for k in range(0 if compiled else 50):
                ts = begin + 50 + k * 34
                t.kernel("add", ts + 15, 4, launch_at=ts + 10, op="aten::add")


def _counts_in_python(t: TraceBuilder) -> None:
    _counter(t, compiled=False)


def _counts_on_device(t: TraceBuilder) -> None:
    _counter(t, compiled=True)


def _falls_back(t: TraceBuilder) -> None:
    _training(t, falls_back=True)


def _stays_compiled(t: TraceBuilder) -> None:
    _training(t, falls_back=False)


RULE = Rule(
    code="FW512",
    name="recompile-limit-fallback",
    class_="framework",
    summary="A compiled function reached its limit of compilations and runs eagerly.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops", "steps"}),
    evidence="S",
    references=(_URL,),
    examples=(
        Example("eager steps after the eighth version", _falls_back, fires=True),
        Example("inputs of other sizes run eagerly, past a lower limit", _other_sizes, fires=True),
        Example("no call finds a version", _counts_in_python, fires=True),
        Example("every call runs a compiled region", _counts_on_device, fires=False),
        Example("an eighth version that serves all steps", _stays_compiled, fires=False),
    ),
)
