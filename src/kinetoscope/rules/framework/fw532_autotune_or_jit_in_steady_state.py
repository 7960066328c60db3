"""Kernels are compiled, or variants of them tried out, in steps that should be warm.

## What it finds
Triton's or Inductor's compilers and benchmarks at work in several of the steady steps, outside the
phases that `torch.compile` marks as its own.

## Why it matters
Compiling a kernel takes tenths of a second, trying its configurations out takes hundreds of
launches and waits. Once is the price of a fast kernel; again and again it is the program.

## How to fix it
A key of `@triton.autotune` must not change with every batch: round sizes to a few values. Keep the
caches between runs (`TRITON_CACHE_DIR`, `TORCHINDUCTOR_CACHE_DIR`), and run all shapes once first.

## Limits
Wants Python stacks. Work in a single step is the first use of a kernel and not reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Coverage, measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._surroundings import (
    outermost,
    steady_extent,
    within,
)
from kinetoscope.trace.kinds import RUNTIME_KINDS, Kind
from kinetoscope.trace.torch_frames import is_autotuning
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_URL = "https://triton-lang.org/main/python-api/generated/triton.autotune.html"


class Thresholds(Options, frozen=True):
    """When tuning is more than the start."""

    min_steps: int = 2
    """Steady steps with such work."""
    min_share: float = 0.02
    """Its time as a share of the steps."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Add the time up, and replay the steps without it."""
    trace, tree = analysis.trace, analysis.trace.tree
    flag = trace.tree.named(is_autotuning) & (tree.kind == Kind.PYTHON)
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


RULE = Rule(
    code="FW532",
    name="autotune-or-jit-in-steady-state",
    class_="framework",
    summary="Kernels are compiled or tried out in steps that should be warm.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"stacks"}),
    evidence="S",
    references=(_URL,),
    examples=(
        Example("a benchmark of kernels in every step", _every_step, fires=True),
        Example("a benchmark of kernels in one step", _once, fires=False),
    ),
)
