"""A compiled function reached its limit of compilations and runs eagerly from then on.

## What it finds
A function that `torch.compile` has compiled eight times, and later steps in which Dynamo looks for
a version that fits, finds none, and runs the function as it was written.

## Why it matters
At the limit Dynamo gives up without an error. All the time in the compiler was spent for nothing:
the rest of the run is eager, with the cost of the lookup on top.

## How to fix it
Remove what makes the versions differ; `TORCH_LOGS=recompiles` names the guard.
`torch._dynamo.config.recompile_limit` only moves the end.

## Limits
The recording must contain the last compilations and the steps after them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import union
from kinetoscope.result import Evidence, Fix, Gain
from kinetoscope.result.finding import NO_GAIN
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._compiling import compilations, lookups, regions
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_URL = (
    "https://docs.pytorch.org/docs/2.14/user_guide/torch_compiler/compile/"
    "programming_model.recompilation.html"
)
_SPREAD = 0.15
"""Spread of the ratio of two medians over a few steps."""


class Thresholds(Options, frozen=True):
    """What is a fallback."""

    limit: int = 8
    """`torch._dynamo.config.recompile_limit`."""
    min_eager_steps: int = 2
    """Steps after the last compiled call in which Dynamo looked for a version."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Follow the functions that reached the limit."""
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
        fix=Fix(
            summary="Remove what makes the versions differ: dynamic shapes, no changing Python "
            "numbers in the function. TORCH_LOGS=recompiles names the guard that failed.",
            snippet="model = torch.compile(model, dynamic=True)",
            reference=_URL,
        ),
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
        Example("an eighth version that serves all steps", _stays_compiled, fires=False),
    ),
)
