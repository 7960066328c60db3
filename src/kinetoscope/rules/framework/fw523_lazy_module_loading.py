"""Device code is loaded while the program should be running.

## What it finds
Loading of kernels or modules (`Lazy Function Loading`, `cuModuleLoadData`, `cuLibraryLoadData`)
in several of the steady steps.

## Why it matters
CUDA loads a kernel when it is first used. Loading takes from tenths of a millisecond to tens of
milliseconds and waits for the device. Once a program is warm there should be none of it; when it
goes on, new kernels are still being met, mostly because shapes change.

## How to fix it
Run every shape once before the program serves or is measured. Pad inputs to a few sizes, so that
the libraries do not choose new kernels. `CUDA_MODULE_LOADING=EAGER` loads everything at the start.

## Limits
Loading in a single step is the first use of something and is left to PR901. Loading by a compiler
is reported with the compilation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._surroundings import steady_extent
from kinetoscope.trace.kinds import RUNTIME_KINDS, Kind
from kinetoscope.trace.torch_frames import is_code_loading
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_URL = "https://docs.nvidia.com/cuda/cuda-programming-guide/04-special-topics/lazy-loading.html"


class Thresholds(Options, frozen=True):
    """When loading is worth a word."""

    min_steps: int = 2
    """Steady steps with loading; a single one is a first use."""
    min_share: float = 0.01
    """Loading as a share of the step."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Add the loading up and replay the steps without it."""
    rows = analysis.in_steps(analysis.matching(is_code_loading))
    rows = rows[np.isin(analysis.trace.column("kind")[rows], (Kind.OVERHEAD, *RUNTIME_KINDS))]
    steps = np.unique(analysis.trace.steps.of(analysis.trace.column("ts_ns")[rows]))
    if steps.size < options.min_steps:
        return
    loading = steady_extent(analysis, rows)
    per_step = measure(loading) // analysis.steps_on_host
    share = per_step / max(analysis.step_ns, 1)
    if share < options.min_share:
        return
    yield Hit(
        message=(
            f"Device code is still being loaded in {steps.size} of the recorded steps: "
            f"{duration(per_step)} of each step, {percent(min(share, 1.0))} of it."
        ),
        evidence=(
            Evidence("loading_time", per_step, "ns"),
            Evidence("loads", int(rows.size), "count"),
            Evidence("steps_with_loading", int(steps.size), "count"),
        ),
        locations=analysis.locations(rows[analysis.trace.tree.node_of[rows] >= 0]),
        fix=Fix(
            summary="Run every shape once before the steady part, and pad inputs to a few sizes.",
            snippet="for size in sizes:\n    model(torch.zeros(size, device=device))  # warm-up\n"
            "# or, for a server: CUDA_MODULE_LOADING=EAGER",
            reference=_URL,
        ),
        gain=analysis.gain(Change(host_cut=loading, host_cut_factor=0.7), Change(host_cut=loading)),
        confidence=0.9,
        claims=loading,
        at_most="medium",
    )


def _loads(t: TraceBuilder, steps: tuple[int, ...]) -> None:
    for step in range(5):
        at = step * 2_000.0
        t.step(at, 2_000)
        if step in steps:
            t.runtime("cuLibraryLoadData", at + 20, 600, cat="cuda_driver")
        begin = at + 630 if step in steps else at + 20
        t.kernel("gemm", begin + 10, at + 1_990 - begin - 10, launch_at=begin)


def _every_step(t: TraceBuilder) -> None:
    _loads(t, (0, 1, 2, 3, 4))


def _once(t: TraceBuilder) -> None:
    _loads(t, (1,))


RULE = Rule(
    code="FW523",
    name="lazy-module-loading",
    class_="framework",
    summary="Kernels are still being loaded in steps that should be warm.",
    check=check,
    options=Thresholds(),
    evidence="TS",
    references=(_URL,),
    examples=(
        Example("a library loaded in every step", _every_step, fires=True),
        Example("a library loaded in one step", _once, fires=False),
    ),
)
