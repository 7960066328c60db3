"""The allocator gives its memory back to the driver in the loop, and has to take it again.

## What it finds
Several `cudaFree` (`cuMemUnmap`, `hipFree`) in most steps, with the synchronisation before and the
`cudaMalloc` after them: either `torch.cuda.empty_cache()` is called in the loop, or the device is
so full that the allocator empties its cache to satisfy a request (a *retry*).

## Why it matters
`cudaFree` waits until the device has finished everything, so the queue of kernels runs dry; then
each block is bought back from the driver at 0.1 ms and more. Freed memory in the cache is not
lost memory: the next allocation uses it. `empty_cache()` makes none available to PyTorch.

## How to fix it
Delete `empty_cache()` from the loop. If nobody calls it, memory is too tight: lower the peak
(smaller micro-batch, activation checkpointing), or set `expandable_segments:True` or
`garbage_collection_threshold:0.8` in `PYTORCH_ALLOC_CONF`.

## Limits
An `empty_cache()` between phases (training, evaluation, generation) may be meant to hand memory to
another process. The rule needs the calls in most of the recorded steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Intervals, measure, merge
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.memory._allocator import DriverCalls, driver_calls, steps_with
from kinetoscope.rules.spread import spread
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When flushes are worth a word."""

    min_frees: int = 2
    """Calls in a step that give memory back; one is a block that nothing needs any more."""
    min_steps: float = 0.6
    """Share of the steps after the first one that do so."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Count the steps that give memory back, and replay without all that belongs to it."""
    calls = driver_calls(analysis)
    if analysis.steps_on_host < 2:
        return
    if steps_with(analysis, calls.returned, options.min_frees) < options.min_steps:
        return
    rows = np.unique(np.concatenate((calls.taken, calls.returned, calls.waits)))
    spent = analysis.extent(np.unique(np.concatenate((rows, calls.flushes))))
    share = measure(spent) / (analysis.step_ns * calls.steps)
    frees = calls.returned.size / calls.steps
    searching = _allocating(analysis, calls)
    yield Hit(
        message=f"{_who(calls)} in each step: {count(round(frees, 1))} blocks go back to the "
        f"driver and {count(round(calls.taken.size / calls.steps, 1))} are taken again, "
        f"{duration(measure(spent) // calls.steps)} ({percent(min(share, 1.0))} of the step).",
        evidence=(
            Evidence("freed_per_step", round(frees, 1), "count"),
            Evidence("taken_per_step", round(calls.taken.size / calls.steps, 1), "count"),
            Evidence("time_per_step", measure(spent) // calls.steps, "ns"),
            Evidence("empty_cache_calls", int(calls.flushes.size), "count"),
        ),
        locations=analysis.locations(
            calls.flushes if calls.flushes.size else calls.returned, calls=("empty_cache",)
        ),
        fix=_fix(calls),
        gain=spread(
            analysis.gain(
                Change(host_cut=spent, drop_calls=rows),
                Change(
                    host_cut=spent,
                    drop_calls=rows,
                    more_cuts=((searching, _beyond_usual(analysis, calls)),),
                ),
                Change(host_cut=merge(spent, searching), drop_calls=rows),
            )
        ),
        confidence=0.9,
        claims=spent,
    )


def _allocating(analysis: Analysis, calls: DriverCalls) -> Intervals:
    """The operators that found the cache empty: searching and splitting blocks costs time too."""
    return analysis.extent(_owners(analysis, calls)[0])


_IN_THE_DRIVER = 0.1
"""Part of an operator's time that calls which take memory have at least where it is about memory;
0.14 to 0.9 in five programs. Where they have less, the operator does something else for long, such
as to try a library's algorithms out."""


def _owners(analysis: Analysis, calls: DriverCalls) -> tuple[IntArray, IntArray]:
    """Rows of the operators that had to take memory, and their own time beside those calls, ns."""
    dur, ops = analysis.trace.column("dur_ns"), analysis.trace.links.op[calls.taken]
    found, which = np.unique(ops, return_inverse=True)
    taking = np.bincount(which, dur[calls.taken], found.size).astype(np.int64)
    chosen = (found >= 0) & (taking >= _IN_THE_DRIVER * dur[found])
    return found[chosen], dur[found[chosen]] - taking[chosen]


def _beyond_usual(analysis: Analysis, calls: DriverCalls) -> float:
    """Part of these operators' own time by which they exceed others of their name.

    The others found memory cached; where there are none, nothing is known to be too much.
    """
    trace = analysis.trace
    dur, name = trace.column("dur_ns"), trace.column("name_id")
    found, own = _owners(analysis, calls)
    every = analysis.in_steps(analysis.rows(Kind.CPU_OP))
    others = every[~np.isin(every, trace.links.op[calls.taken])]
    more = 0.0
    for kind in np.unique(name[found]):
        mine, usual = own[name[found] == kind], dur[others[name[others] == kind]]
        more += np.maximum(mine - np.median(usual), 0).sum() if usual.size else 0.0
    return float(more / max(own.sum(), 1))


def _who(calls: DriverCalls) -> str:
    if calls.flushes.size:
        return "empty_cache() flushes the allocator's cache"
    return "The allocator flushes its cache"


def _fix(calls: DriverCalls) -> Fix:
    if calls.flushes.size:
        return Fix(
            summary="Delete torch.cuda.empty_cache() from the loop: PyTorch uses cached memory "
            "again by itself.",
            reference="https://docs.pytorch.org/docs/stable/generated/"
            "torch.cuda.memory.empty_cache.html",
        )
    return Fix(
        summary="Take torch.cuda.empty_cache() out of the loop if it is called there; otherwise "
        "memory is too tight: lower the peak, or let segments grow.",
        snippet="os.environ['PYTORCH_ALLOC_CONF'] = 'expandable_segments:True'  # before "
        "import torch",
        reference="https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",
    )


def _flushes(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 6_000
        t.step(at, 6_000)
        t.op("aten::empty", at + 5, 400)
        t.runtime("cudaMalloc", at + 10, 380)
        t.kernel("gemm", at + 520, 3_000, launch_at=at + 500)
        t.python("torch/cuda/memory.py(220): empty_cache", at + 600, 5_000)
        t.sync(at + 620, 2_910, name="cudaDeviceSynchronize")
        for i in range(4):
            t.runtime("cudaFree", at + 3_560 + 400 * i, 350)


def _cached(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 3_500
        t.step(at, 3_500)
        if step == 0:
            t.runtime("cudaMalloc", at + 10, 380)
        t.kernel("gemm", at + 520, 2_990, launch_at=at + 500)


RULE = Rule(
    code="MM303",
    name="allocator-flush-or-retry-loop",
    class_="memory",
    summary="Device memory goes back to the driver and is taken again in every step.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"steps"}),
    evidence="TS",
    remedies=("expandable-segments",),
    references=(
        "https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.empty_cache.html",
        "https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",
    ),
    examples=(
        Example("empty_cache() at the end of each step", _flushes, fires=True),
        Example("memory taken once and kept", _cached, fires=False),
    ),
)
