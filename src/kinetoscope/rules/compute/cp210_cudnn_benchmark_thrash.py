"""cuDNN looks for an algorithm again and again, because the shapes are always new.

## What it finds
Operators of cuDNN or MIOpen (convolutions, attention, recurrent nets) that spend milliseconds on
the host in several steps, each time for other shapes: they choose an algorithm and build its plan,
or run all algorithms to find the fastest (`torch.backends.cudnn.benchmark`).

## Why it matters
cuDNN keeps what it chose by the shapes. A decoder whose keys grow by one with every token, or
images of ever new sizes, never find anything there. A plan for a convolution takes 2 ms, one for
attention took 20 to 370 ms on an H200, and trying all algorithms out 30 ms a layer, with the device
idle or busy with trials. On recent devices cuDNN's attention is the one that
`scaled_dot_product_attention` takes first, so decoding with a growing cache runs into this unasked.

## How to fix it
Leave `torch.backends.cudnn.benchmark` off where sizes change. Take another attention kernel while
keys grow (`torch.backends.cuda.enable_cudnn_sdp(False)`), or keep keys and values in buffers of a
fixed length with a mask. Otherwise pad to a few sizes, and run each of them once before the work
begins. Two decoders on an H200 went from 46 to 87 ms a step to 11 ms, and from 30 to 56 ms to
8 ms, without cuDNN's attention.

## Limits
Whether shapes come again after a while, and are known then, only a recording of more steps tells.
Without shapes a slow operator in several steps is taken at its word.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Gain
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._plans import Plans, new_plans
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When looking for algorithms is more than the start."""

    min_steps: int = 2
    """Steps with such work; in one it may be the first use."""
    min_share: float = 0.02
    """Its time as a share of the steps."""
    min_search_ns: int = 1_000_000
    """Host time of one operator, apart from its calls into the runtime; a call whose algorithm is
    known takes some 20 µs."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find operators that look for an algorithm, and replay the steps without that."""
    plans = new_plans(analysis, options.min_search_ns)
    if plans is None:
        return
    trace = analysis.trace
    steps = np.unique(trace.steps.of(trace.column("ts_ns")[plans.ops]))
    per_step = measure(plans.search) // analysis.steps_on_host
    share = per_step / max(analysis.step_ns, 1)
    if steps.size < options.min_steps or share < options.min_share:
        return
    name = trace.names[int(np.bincount(trace.column("name_id")[plans.ops]).argmax())]
    what = "tries all algorithms out" if plans.tried else "chooses an algorithm"
    yield Hit(
        message=(
            f"The library behind `{name}` {what} for ever new shapes: {count(plans.ops.size)} "
            f"times in {count(int(steps.size))} of the recorded steps, {duration(per_step)} of "
            f"each step ({percent(min(share, 1.0))})."
        ),
        evidence=(
            Evidence("search_time", per_step, "ns"),
            Evidence("searches", int(plans.ops.size), "count"),
            Evidence("steps_with_searches", int(steps.size), "count"),
            Evidence("kernels_tried", int(plans.trials.size), "count"),
        ),
        locations=analysis.locations(plans.ops),
        fix=_fix(name, tried=plans.tried),
        gain=_gain(analysis, plans),
        confidence=0.9 if steps.size > options.min_steps else 0.7,
        claims=plans.search,
    )


_CHOICE_NS = 1_800_000
"""What cuDNN's heuristics take to choose an algorithm for a convolution of a new size, and to build
its plan: 1.5 to 2.2 ms with cuDNN 9 on an H200's host."""


def _gain(analysis: Analysis, plans: Plans) -> Gain:
    """By replay; without trials the library still has to choose, unless sizes come again."""
    choose = plans.ops.size * _CHOICE_NS // analysis.steps_on_host if plans.tried else 0
    part, trials = Change(host_cut=plans.search, host_cut_factor=0.8), plans.trials
    likely = Change(host_cut=plans.search, drop_calls=trials, extra_host_ns=choose)
    best = Change(host_cut=plans.search, drop_calls=trials)
    return analysis.gain(replace(part, drop_calls=trials), likely, best)


def _fix(name: str, *, tried: bool) -> Fix:
    if tried:
        return Fix(
            summary="Do not let cuDNN try its algorithms out where sizes change, or pad to a few "
            "sizes.",
            snippet="torch.backends.cudnn.benchmark = False",
            reference=_BENCHMARK,
        )
    if "attention" in name:
        return Fix(
            summary="Take another attention kernel while the keys grow, keep keys and values in "
            "buffers of a fixed length with a mask, or pad to a few lengths.",
            snippet="torch.backends.cuda.enable_cudnn_sdp(False)",
            reference=_BACKENDS,
        )
    return Fix(
        summary="Pad to a few sizes, and run each of them once before the work begins.",
        snippet="side = 32 * math.ceil(image.shape[-1] / 32)   # a few sizes, not one per batch",
        reference=_BENCHMARK,
    )


_BENCHMARK = "https://docs.pytorch.org/docs/stable/backends.html#torch.backends.cudnn.benchmark"
_BACKENDS = (
    "https://docs.pytorch.org/docs/stable/backends.html#torch.backends.cuda.enable_cudnn_sdp"
)


def _grows(t: TraceBuilder, lengths: tuple[int, ...]) -> None:
    """One token a step; the attention takes 40 ms on the host for a length it has not seen."""
    at = 0.0
    for step, keys in enumerate(lengths):
        slow = 40_000.0 if keys not in lengths[:step] else 30.0
        t.step(at, slow + 1_000)
        t.op(
            "aten::_cudnn_attention_forward",
            at + 10,
            slow,
            dims=[[8, 16, 1, 64], [8, 16, keys, 64], [8, 16, keys, 64]],
        )
        t.kernel("cudnn_generated_fort_native_sdpa", at + slow + 20, 60, launch_at=at + slow - 8)
        t.sync(at + slow + 100, 100)
        at += slow + 1_000


def _new_lengths(t: TraceBuilder) -> None:
    _grows(t, (30, 31, 32, 33))


def _same_length(t: TraceBuilder) -> None:
    _grows(t, (30, 30, 30, 30))


RULE = Rule(
    code="CP210",
    name="cudnn-benchmark-thrash",
    class_="compute",
    summary="cuDNN looks for an algorithm again and again, because the shapes are always new.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "ops"}),
    evidence="T",
    references=(_BENCHMARK, _BACKENDS),
    examples=(
        Example("attention over keys that grow, planned anew", _new_lengths, fires=True),
        Example("attention over keys of one length", _same_length, fires=False),
    ),
)
