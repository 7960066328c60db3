"""The host cannot launch the kernels as fast as the device runs them.

## What it finds
The device is idle for a large part of the step, and all that time the launching threads are busy
with operators, launches and the Python between them: no loader, no wait, no compiler, no long
piece of other work explains the gaps.

## Why it matters
An eager operator costs the host five to twenty microseconds, however small it is. Kernels shorter
than that leave the device waiting. A faster GPU gains nothing, and neither do faster kernels.

## How to fix it
Launch once instead of many times: `torch.compile(model, mode="reduce-overhead")` replays CUDA
graphs; `torch.cuda.graph` or `torch.cuda.make_graphed_callables` capture by hand. Fewer, larger
operators help too: a larger batch, fused optimizers, `torch.compile` without graphs.

## Limits
Recording itself slows the host down, by up to a factor of four with stacks. The prediction takes
the modelled overhead off, but its range is wide; a known step time (`--real-step-ms`) narrows it.
Captured graphs need fixed shapes and addresses and no reads by the host inside. The cautious end
of the range leaves the optimizer's step outside the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.phase import trains
from kinetoscope.result import Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._launching import (
    compiled_share,
    evidence,
    graph_gain,
    larger_parts,
    launch_bound,
    most_severe,
    places,
    reads_per_step,
    worth_a_word,
)
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When a step is called launch-bound."""

    min_share: float = 0.3
    """Idle time under launching as a share of the step; TraceLens speaks of 15 % idle, but as
    recorded, with the profiler's own cost in it."""
    min_launches: int = 16
    """Device events a step; replaying fewer as a graph is not worth the trouble."""
    compiled_share: float = 0.5
    """From this part of launches by compiled code on FW513 speaks instead."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Look for idle time under launching, and replay the step as a graph."""
    bound = launch_bound(analysis, min_share=options.min_share, min_launches=options.min_launches)
    if bound is None or compiled_share(analysis, bound) >= options.compiled_share:
        return
    gain = graph_gain(analysis, bound)
    if not worth_a_word(gain):
        return
    yield Hit(
        message=(
            f"The host launches {bound.per_step:,.0f} kernels and copies a step, of "
            f"{duration(bound.kernel_ns)} each, and is too slow for the device, which waits for "
            f"{percent(bound.share)} of the step as recorded."
        ),
        evidence=evidence(analysis, bound),
        locations=places(analysis, bound),
        fix=_fix(analysis, reads=reads_per_step(analysis)),
        gain=gain,
        confidence=0.7,
        claims=bound.idle,
        at_most=most_severe(analysis, bound, gain),
    )


def _fix(analysis: Analysis, *, reads: float) -> Fix:
    several = f" Each of the {reads:,.0f} reads from the device ends a graph: remove them first."
    one = " The read from the device ends a graph: remove it first."
    first = "" if reads < 1 else one if round(reads) == 1 else several
    if analysis.get(trains):
        return Fix(
            summary="Compile the model with CUDA graphs, or capture the whole training step; "
            "or give each launch more work with a larger batch. The likely gain counts the "
            f"optimizer as well, captured or fused.{larger_parts(analysis)}{first}",
            snippet='model = torch.compile(model, mode="reduce-overhead")\n'
            "optimizer = torch.optim.AdamW(model.parameters(), fused=True)",
            reference="https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs",
        )
    return Fix(
        summary=f"Replay the forward pass as a CUDA graph.{first}",
        snippet='model = torch.compile(model, mode="reduce-overhead")\n'
        "with torch.inference_mode():\n    output = model(batch)",
        reference="https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs",
    )


def _eager(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 1_500.0
        t.step(at, 1_500)
        t.python("model.py(10): forward", at + 5, 1_490)
        for i in range(70):
            begin = at + 10 + i * 21
            t.op("aten::add", begin, 18)
            t.kernel("elementwise_kernel", begin + 14, 2, launch_at=begin + 5)


def _queued(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 1_500.0
        t.step(at, 1_500)
        for i in range(70):
            begin = at + 10 + i * 21
            t.op("aten::mm", begin, 18)
            t.kernel("gemm", begin + 15, 20.5, launch_at=begin + 5)


RULE = Rule(
    code="FW501",
    name="launch-bound-step",
    class_="framework",
    summary="The host cannot launch kernels as fast as the device runs them.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "ops"}),
    evidence="TE",
    remedies=("compile=reduce-overhead", "cuda-graph"),
    references=(
        "https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    ),
    examples=(
        Example("seventy kernels of 2 µs, one every 21 µs", _eager, fires=True),
        Example("kernels as long as the operators that launch them", _queued, fires=False),
    ),
)
