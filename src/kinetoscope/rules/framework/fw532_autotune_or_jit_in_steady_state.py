"""Kernels are compiled, chosen, or variants of them tried out, in steps that should be warm.

## What it finds
Triton's or Inductor's compilers and benchmarks at work in several of the steady steps, outside the
phases that `torch.compile` marks as its own. And operators of cuDNN or MIOpen (convolutions,
attention, recurrent nets) that spend milliseconds on the host in several steps, each time for
other shapes: they look for an algorithm, or run all of them to find the fastest.

## Why it matters
Compiling a kernel takes tenths of a second, trying its configurations out takes hundreds of
launches and waits. Once is the price of a fast kernel; again and again it is the program. cuDNN
keeps what it chose by the shapes: a decoder whose keys grow by one with every token, or images of
ever new sizes, never find anything there. One such call took 40 to 370 ms on an H200.

## How to fix it
A key of `@triton.autotune` must not change with every batch: round sizes to a few values. Keep the
caches between runs (`TRITON_CACHE_DIR`, `TORCHINDUCTOR_CACHE_DIR`), and run all shapes once first.
For cuDNN: pad to a few sizes; leave `torch.backends.cudnn.benchmark` off where sizes change; take
another attention kernel for growing keys (`torch.backends.cuda.enable_cudnn_sdp(False)`).

## Limits
Triton's and Inductor's work wants Python stacks. Work in a single step is the first use of a kernel
and not reported. Whether shapes come again after a while, and are known then, only a recording of
more steps tells.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Coverage, measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Gain
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._plans import Plans, new_plans
from kinetoscope.rules.framework._surroundings import (
    nodes_named,
    outermost,
    steady_extent,
    within,
)
from kinetoscope.trace.kinds import RUNTIME_KINDS, Kind
from kinetoscope.trace.torch_frames import is_autotuning
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_URL = "https://triton-lang.org/main/python-api/generated/triton.autotune.html"


class Thresholds(Options, frozen=True):
    """When tuning is more than the start."""

    min_steps: int = 2
    """Steady steps with such work."""
    min_share: float = 0.02
    """Its time as a share of the steps."""
    min_search_ns: int = 1_000_000
    """Host time of one operator of cuDNN or MIOpen, apart from its calls into the runtime; a call
    whose algorithm is known takes some 20 µs."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Look for both kinds."""
    yield from _tuning(analysis, options)
    yield from _searching(analysis, options)


def _tuning(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Add the time up, and replay the steps without it."""
    if not analysis.has("stacks"):
        return
    trace, tree = analysis.trace, analysis.trace.tree
    flag = nodes_named(trace, is_autotuning) & (tree.kind == Kind.PYTHON)
    flag &= ~within(trace, tree.kind == Kind.COMPILE)
    rows = analysis.in_steps(tree.rows[outermost(trace, flag)])
    steps = np.unique(trace.steps.of(trace.column("ts_ns")[rows]))
    if steps.size < options.min_steps:
        return
    tuning = steady_extent(analysis, rows)
    per_step = measure(tuning) // analysis.steps_on_host
    share = per_step / max(analysis.step_ns, 1)
    if share < options.min_share:
        return
    calls = analysis.in_steps(analysis.rows(*RUNTIME_KINDS))
    ts = trace.column("ts_ns")[calls]
    calls = calls[Coverage(tuning).between(ts, ts + 1) > 0]
    yield Hit(
        message=(
            f"Kernels are compiled or tried out in {steps.size} of the recorded steps: "
            f"{duration(per_step)} of each step, {percent(min(share, 1.0))} of it."
        ),
        evidence=(
            Evidence("tuning_time", per_step, "ns"),
            Evidence("steps_with_tuning", int(steps.size), "count"),
            Evidence("calls_of_the_tuner", int(rows.size), "count"),
        ),
        locations=analysis.locations(rows),
        fix=Fix(
            summary="Let kernels see a few sizes only, keep the caches, and warm all sizes up.",
            snippet="n = triton.next_power_of_2(x.shape[0])   # the key of @triton.autotune",
            reference=_URL,
        ),
        gain=analysis.gain(
            Change(host_cut=tuning, host_cut_factor=0.9, drop_calls=calls),
            Change(host_cut=tuning, drop_calls=calls),
        ),
        confidence=0.9,
        claims=tuning,
    )


def _searching(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Algorithms that a library looks for again, as the shapes are new in each step."""
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


def _tunes(t: TraceBuilder, steps: tuple[int, ...]) -> None:
    for step in range(4):
        at = step * 10_000.0
        t.step(at, 10_000)
        t.python("train.py(10): step", at + 2, 9_990)
        if step in steps:
            t.python("triton/testing.py(90): do_bench", at + 10, 8_000)
        t.kernel("triton_kernel", at + 8_100, 1_800, launch_at=at + 8_050)


def _every_step(t: TraceBuilder) -> None:
    _tunes(t, (0, 1, 2, 3))


def _once(t: TraceBuilder) -> None:
    _tunes(t, (1,))


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
    code="FW532",
    name="autotune-or-jit-in-steady-state",
    class_="framework",
    summary="Kernels are compiled, chosen or tried out in steps that should be warm.",
    check=check,
    options=Thresholds(),
    evidence="S",
    references=(_URL,),
    examples=(
        Example("a benchmark of kernels in every step", _every_step, fires=True),
        Example("a benchmark of kernels in one step", _once, fires=False),
        Example("attention over keys that grow, planned anew", _new_lengths, fires=True),
        Example("attention over keys of one length", _same_length, fires=False),
    ),
)
