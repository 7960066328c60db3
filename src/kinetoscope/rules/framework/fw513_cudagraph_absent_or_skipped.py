"""Compiled code launches its kernels one by one, and the device waits for them.

## What it finds
Most launches of the step come from regions of `torch.compile`, no captured graph is replayed, and
the device is idle while the host launches.

## Why it matters
The default mode of `torch.compile` fuses kernels but still launches each of them from Python-made
code. When the fused kernels are short, launching is what the step consists of.

## How to fix it
`torch.compile(model, mode="reduce-overhead")` or `mode="max-autotune"` replays the kernels as a
CUDA graph. Where that mode is already set, the graph was skipped: `TORCH_LOGS=perf_hints` prints
why (inputs that are changed in place, tensors on the CPU, dynamic shapes).

## Limits
Graphs keep their memory and need the same shapes each time. The prediction takes the modelled
cost of profiling off; its range is wide.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._launching import (
    compiled_share,
    evidence,
    graph_gain,
    has_compiled_code,
    launch_bound,
    most_severe,
    places,
    worth_a_word,
)
from kinetoscope.trace.compiled_frames import compiled_region
from kinetoscope.units import percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When a graph is missing."""

    min_share: float = 0.2
    """Idle time under launching as a share of the step; less than for eager code, since the
    change is one word."""
    min_launches: int = 10
    """Device events a step; Inductor's graphs of fewer kernels gain little."""
    min_compiled: float = 0.5
    """Part of the launches that compiled code issued."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """The same facts as for a launch-bound step, inside compiled regions."""
    if not has_compiled_code(analysis.trace):
        return
    bound = launch_bound(analysis, min_share=options.min_share, min_launches=options.min_launches)
    if bound is None:
        return
    compiled = compiled_share(analysis, bound)
    if compiled < options.min_compiled:
        return
    regions = analysis.in_steps(analysis.matching(lambda n: compiled_region(n) is not None))
    calls = max(regions.size / analysis.steps_on_host, 1.0)
    gain = graph_gain(analysis, bound, compiled_calls=calls)
    if not worth_a_word(gain):
        return
    yield Hit(
        message=(
            f"Compiled code launches {bound.per_step:,.0f} kernels a step one by one, and the "
            f"device waits for {percent(bound.share)} of the step as recorded; no CUDA graph is "
            "replayed."
        ),
        evidence=(
            Evidence("compiled_launches", round(compiled, 6), "ratio"),
            *evidence(analysis, bound),
        ),
        locations=places(analysis, bound),
        fix=Fix(
            summary="Let `torch.compile` replay CUDA graphs.",
            snippet='model = torch.compile(model, mode="reduce-overhead")',
            reference="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
        ),
        gain=gain,
        confidence=0.7,
        claims=bound.idle,
        at_most=most_severe(analysis, bound, gain),
    )


def _one_by_one(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 1_000.0
        t.step(at, 1_000)
        t.op("Torch-Compiled Region: 0/0", at + 5, 990)
        for i in range(40):
            t.kernel(f"triton_poi_fused_{i}", at + 20 + i * 24, 2, launch_at=at + 10 + i * 24)


def _long_kernels(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 1_000.0
        t.step(at, 1_000)
        t.op("Torch-Compiled Region: 0/0", at + 5, 400)
        for i in range(20):
            t.kernel(f"triton_red_fused_{i}", at + 20 + i * 49, 48, launch_at=at + 10 + i * 18)


RULE = Rule(
    code="FW513",
    name="cudagraph-absent-or-skipped",
    class_="framework",
    summary="Compiled code launches its kernels one by one and keeps the device waiting.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "ops"}),
    evidence="ST",
    remedies=("compile=reduce-overhead", "cuda-graph"),
    references=(
        "https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
        "https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html",
    ),
    examples=(
        Example("forty fused kernels of 2 µs, one every 24 µs", _one_by_one, fires=True),
        Example("compiled code that stays ahead of long kernels", _long_kernels, fires=False),
    ),
)
