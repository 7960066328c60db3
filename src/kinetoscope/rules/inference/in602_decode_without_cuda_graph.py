"""A decoder makes one token at a time, and the host cannot launch it fast enough.

## What it finds
A launch-bound step without a backward pass whose attention reads a longer sequence with queries
of length one: autoregressive decoding, launched operator by operator.

## Why it matters
A decode step consists of hundreds of kernels of a few microseconds. The host needs longer to
launch them than the device to run them, and the time per token is the host's.

## How to fix it
Give the keys and values a static cache and replay the step as a CUDA graph:
`torch.compile(model, mode="reduce-overhead")`, or the graph mode of the serving engine (vLLM:
`enforce_eager=False`).

## Limits
Needs the shapes to tell decoding from other small steps (else FW501 reports it). Recording slows
the host down; the prediction takes the modelled overhead off, and its range is wide.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.decoding import decode_share
from kinetoscope.metrics.phase import trains
from kinetoscope.result import Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._launching import (
    evidence,
    graph_gain,
    launch_bound,
    most_severe,
    places,
    worth_a_word,
)
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When decoding is launch-bound."""

    min_share: float = 0.3
    """Idle time under launching as a share of the step, as for FW501."""
    min_launches: int = 16
    """Device events a step."""
    min_decode: float = 0.8
    """Part of the attention operators whose query has length one."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """A launch-bound step whose attention decodes."""
    if analysis.get(trains) or analysis.get(decode_share) < options.min_decode:
        return
    bound = launch_bound(analysis, min_share=options.min_share, min_launches=options.min_launches)
    if bound is None:
        return
    gain = graph_gain(analysis, bound)
    if not worth_a_word(gain):
        return
    yield Hit(
        message=(
            f"Each decoding step launches {bound.per_step:,.0f} kernels of "
            f"{duration(bound.kernel_ns)} one by one, and the device waits for "
            f"{percent(bound.share)} of the time as recorded."
        ),
        evidence=evidence(analysis, bound),
        locations=places(analysis, bound),
        fix=Fix(
            summary="Use a static cache and replay the decoding step as a CUDA graph.",
            snippet='model = torch.compile(model, mode="reduce-overhead")\n'
            '# transformers: model.generation_config.cache_implementation = "static"',
            reference="https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs",
        ),
        gain=gain,
        confidence=0.9,
        claims=bound.idle,
        at_most=most_severe(analysis, bound, gain),
    )


def _token(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 1_500.0
        t.step(at, 1_500)
        t.python("generate.py(10): next_token", at + 5, 1_490)
        for i in range(60):
            begin = at + 10 + i * 24
            if i % 10 == 0:
                query, key = [1, 8, 1, 64], [1, 8, 256, 64]
                name = "aten::scaled_dot_product_attention"
                t.op(name, begin, 20, dims=[query, key, key])
            else:
                t.op("aten::linear", begin, 20, dims=[[1, 512], [512, 512]])
            t.kernel("kernel", begin + 14, 2, launch_at=begin + 5)


def _prompt(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 1_500.0
        t.step(at, 1_500)
        for i in range(60):
            begin = at + 10 + i * 24
            shape = [1, 8, 1, 64], [1, 8, 256, 64], [1, 8, 256, 64]
            t.op("aten::scaled_dot_product_attention", begin, 20, dims=shape)
            t.kernel("flash_fwd", begin + 14, 24, launch_at=begin + 5)


RULE = Rule(
    code="IN602",
    name="decode-without-cuda-graph",
    class_="framework",
    summary="Token by token decoding is launched operator by operator, too slowly for the device.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "ops", "shapes"}),
    remedies=("cuda-graph",),
    references=(
        "https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs",
        "https://docs.vllm.ai/en/latest/design/cuda_graphs/",
    ),
    examples=(
        Example("a decoding step of kernels of 2 µs", _token, fires=True),
        Example("decoding with kernels that keep the device busy", _prompt, fires=False),
    ),
)
