"""The last wave of a product's blocks fills only a part of the device.

## What it finds
Matrix products and convolutions whose grid is one to four waves of blocks, the last of them
mostly empty. A wave is as many blocks as the device holds at once.

## Why it matters
All blocks of a wave take about the same time, and the last wave takes as long as a full one. A
grid of 1.1 waves takes two waves' time: 45 % of it is wasted.

## How to fix it
Change the batch or the layer's width so that the blocks fill whole waves, or let the compiler
choose other tiles: `torch.compile(mode="max-autotune")`.

## Limits
How many blocks the device holds comes from the recorded occupancy, an estimate; kernels without
it, and persistent or split-K kernels, are left out. Nothing is the cautious gain: blocks of a
last wave run faster when they share nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.launch_shape import launch_shapes
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import (
    alone,
    busy_share,
    extent_of,
    multiprocessors,
    named_so,
    per_step_ns,
    persistent,
    places,
    shrunk,
)
from kinetoscope.trace.kernel_names import is_split_k
from kinetoscope.trace.kinds import Family
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_GUIDE = (
    "https://docs.nvidia.com/deeplearning/performance/"
    "dl-performance-matrix-multiplication/index.html"
)


class Thresholds(Options, frozen=True):
    """When an empty last wave is worth a word."""

    min_ns: int = 10_000
    """Shorter kernels are bound by their start-up."""
    min_tail: float = 0.25
    """Time of the waves over that of the same blocks without a tail, minus 1 (RULES, CP213)."""
    max_waves: float = 4.0
    """With more waves the tail is small."""
    min_share: float = 0.05
    """Share of the busy time in such kernels."""
    saved: tuple[float, float, float] = (0.0, 0.5, 1.0)
    """Part of the tail that the fix saves."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find products with an empty last wave and replay them without."""
    available = multiprocessors(analysis)
    shapes = analysis.get(launch_shapes)
    ns = analysis.trace.column("dur_ns")[shapes.rows]
    product = np.isin(analysis.trace.column("family")[shapes.rows], (Family.GEMM, Family.CONV)) & (
        ns >= options.min_ns
    )
    room = np.maximum(available * shapes.resident, 1)
    waves = shapes.blocks / room
    tail = np.ceil(waves) / np.maximum(waves, 1e-9) - 1
    found = product & (shapes.resident > 0) & (available > 0) & (tail > options.min_tail)
    found &= (waves >= 1) & (waves <= options.max_waves)
    found[found] = ~persistent(analysis, shapes.rows[found]) & alone(analysis, shapes.rows[found])
    found[found] = ~named_so(analysis, shapes.rows[found], is_split_k)
    rows, ns = shapes.rows[found], ns[found]
    if rows.size == 0 or busy_share(analysis, rows) < options.min_share:
        return
    wasted = 1 - waves[found] / np.ceil(waves[found])
    worst = int(np.argmax(ns))
    blocks, full = int(shapes.blocks[found][worst]), int(room[found][worst])
    share, spent = busy_share(analysis, rows), per_step_ns(analysis, rows)
    yield Hit(
        message=(
            "Products whose last wave of blocks leaves much of the device empty take "
            f"{duration(spent)} a step ({percent(min(share, 1.0))} of the busy time): the longest "
            f"has {count(blocks)} blocks, {blocks / full:.2f} times the {count(full)} that run at "
            "once."
        ),
        evidence=(
            Evidence("product_time", spent, "ns"),
            Evidence("busy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("blocks", blocks, "count"),
            Evidence("blocks_at_once", full, "count", "derived"),
        ),
        locations=places(analysis, rows),
        fix=Fix(
            summary=f"Change the batch or the width so that the blocks fill whole waves (near "
            f"{count(full * max(blocks // full, 1))} blocks), or autotune the tiles.",
            snippet='module = torch.compile(module, mode="max-autotune")',
            reference=_GUIDE,
        ),
        gain=analysis.gain(
            *(
                Change(durations=(rows, shrunk(ns, ns * (1 - part * wasted))))
                for part in options.saved
            )
        ),
        confidence=0.4,
        claims=extent_of(analysis, rows),
        at_most="medium",
    )


def _products(t: TraceBuilder, blocks: int) -> None:
    shape = [2_048, 2_048]
    per_sm: dict[str, Any] = {"blocks per SM": blocks / 132}
    for step in range(4):
        at = step * 1_000
        t.step(at, 990)
        t.op("aten::mm", at + 10, 12, dims=[shape, shape])
        t.kernel(
            "ampere_sgemm_128x128_nn",
            at + 30,
            900,
            launch_at=at + 14,
            grid=(blocks, 1, 1),
            occupancy=12.5,
            **per_sm,
        )
        t.sync(at + 40, 900)


def _tail(t: TraceBuilder) -> None:
    _products(t, 144)


def _whole(t: TraceBuilder) -> None:
    _products(t, 264)


RULE = Rule(
    code="CP213",
    name="wave-quantization",
    class_="compute",
    summary="The last wave of a product's blocks fills only a part of the device.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device"}),
    evidence="S",
    references=(_GUIDE,),
    examples=(
        Example("144 blocks on 132 multiprocessors, one on each at a time", _tail, fires=True),
        Example("264 blocks: two whole waves", _whole, fires=False),
    ),
)
