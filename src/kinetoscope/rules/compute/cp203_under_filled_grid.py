"""Long kernels run with fewer blocks than the device has multiprocessors.

## What it finds
Kernels of 20 microseconds and more whose grid has fewer blocks than the device has
multiprocessors, for a sizeable part of the device's busy time.

## Why it matters
A block runs on one multiprocessor. A kernel of 33 blocks on a device with 132 multiprocessors
leaves three quarters of it idle for as long as the kernel runs, while the device counts as busy.

## How to fix it
Give the kernel more parallel work: a larger batch, parallel branches merged into one batched
call, attention that splits over the keys for a batch of one. `torch.compile(mode="max-autotune")`
picks split-K products. Independent kernels can run side by side on streams.

## Limits
Persistent kernels (nvjet, stream-K, FlashAttention 3) launch about one block a multiprocessor on
purpose and are left out. Whether the work can be split further is not recorded: half of what a
full device would save is the likely gain.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.launch_shape import launch_shapes
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import (
    alone,
    busy_share,
    device_work,
    extent_of,
    heaviest_op,
    multiprocessors,
    per_step_ns,
    persistent,
    places,
    positions,
    shrunk,
)
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When small grids are worth a word."""

    min_ns: int = 20_000
    """Shorter kernels are bound by their start-up, whatever their grid (RULES: 20 microseconds)."""
    min_share: float = 0.15
    """Share of the device's busy time in such kernels."""
    mostly_idle: float = 0.5
    """Share of the device in use from which on the finding is low: more blocks would help less."""
    filled: tuple[float, float, float] = (0.0, 0.5, 0.8)
    """Part of the idle multiprocessors that the fix puts to work."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find long kernels with small grids and replay them on more of the device."""
    available = multiprocessors(analysis)
    shapes = analysis.get(launch_shapes)
    ns = analysis.trace.column("dur_ns")[shapes.rows]
    small = (shapes.blocks > 0) & (shapes.blocks < available) & (ns >= options.min_ns)
    small[small] = ~persistent(analysis, shapes.rows[small]) & alone(analysis, shapes.rows[small])
    rows, ns = shapes.rows[small], ns[small]
    if rows.size == 0 or busy_share(analysis, rows) < options.min_share:
        return
    used = shapes.blocks[small] / available
    mean = float((used * ns).sum() / ns.sum())
    share, spent = busy_share(analysis, rows), per_step_ns(analysis, rows)
    work = device_work(analysis)
    name = heaviest_op(analysis, work, positions(work, rows))
    most = f"; most of it is `{name}`" if name else ""
    yield Hit(
        message=(
            f"Kernels with fewer blocks than the {count(available)} multiprocessors take "
            f"{duration(spent)} a step, {percent(min(share, 1.0))} of the busy time, and use "
            f"{percent(mean)} of the device{most}."
        ),
        evidence=(
            Evidence("small_grid_time", spent, "ns"),
            Evidence("busy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("multiprocessors_used", round(mean, 6), "ratio", "derived"),
            Evidence("multiprocessors", available, "count"),
        ),
        locations=places(analysis, rows),
        fix=Fix(
            summary="Give these kernels more parallel work: a larger batch, or parallel branches "
            "merged into one batched call.",
            snippet='module = torch.compile(module, mode="max-autotune")  # or a larger batch',
            reference="https://docs.nvidia.com/deeplearning/performance/"
            "dl-performance-gpu-background/index.html",
        ),
        gain=analysis.gain(
            *(
                Change(durations=(rows, shrunk(ns, ns * (1 - part * (1 - used)))))
                for part in options.filled
            )
        ),
        confidence=0.7,
        claims=extent_of(analysis, rows),
        at_most="medium" if mean < options.mostly_idle else "low",
    )


def _steps(t: TraceBuilder, name: str, blocks: int, dur: float) -> None:
    for step in range(4):
        at = step * 2_000
        t.step(at, 1_990)
        t.op("aten::sum", at + 10, 12, dims=[[64, 65_536], [], [], []])
        t.kernel(name, at + 30, dur, launch_at=at + 14, grid=(blocks, 1, 1))
        t.op("aten::mm", at + 40, 12, dims=[[4096, 4096], [4096, 4096]])
        t.kernel("sm80_gemm", at + 30 + dur, 1_900 - dur, launch_at=at + 44, grid=(528, 1, 1))
        t.sync(at + 60, 1_880)


def _few(t: TraceBuilder) -> None:
    _steps(t, "reduce_kernel", 16, 800)


def _persistent(t: TraceBuilder) -> None:
    _steps(t, "nvjet_tst_128x256_64x4_persistent", 66, 800)


RULE = Rule(
    code="CP203",
    name="under-filled-grid",
    class_="compute",
    summary="Long kernels run with fewer blocks than the device has multiprocessors.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device"}),
    evidence="T",
    references=(
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-gpu-background/index.html",
    ),
    examples=(
        Example("a reduction of 16 blocks for 40 % of the step", _few, fires=True),
        Example("a persistent kernel with one block a multiprocessor", _persistent, fires=False),
    ),
)
