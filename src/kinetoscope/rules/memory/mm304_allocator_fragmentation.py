"""The allocator holds much more memory than tensors use, and the device is nearly full.

## What it finds
At the peak the allocator holds 70 % of the device or more, of which tensors use less than 70 %,
for three steps or more.

## Why it matters
Memory in pieces cannot serve a large request: the allocator asks the driver for more, gives back
what it holds and waits, or fails with an out-of-memory error although enough is free in sum.

## How to fix it
`PYTORCH_ALLOC_CONF=expandable_segments:True`; run the largest shape first; round dynamic lengths
up to a few sizes; `max_split_size_mb` where expandable segments are not available.

## Limits
Only a memory snapshot shows the pieces. Private pools of CUDA graphs and space that a server
reserves on purpose look the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.growth import growth
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.data_loading._input import trains
from kinetoscope.rules.memory._allocator import driver_calls
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import percent, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_NOTES = "https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management"


class Thresholds(Options, frozen=True):
    """When held memory is in pieces."""

    unused: float = 0.30
    """Share of what the allocator holds that tensors do not use at their peak (RULES, MM304)."""
    held: float = 0.70
    """Share of the device that the allocator holds."""
    min_steps: int = 3
    """Steps in which that is so."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Compare the peaks of held and used memory, step by step."""
    found = analysis.get(growth)
    if found is None or found.device < 0:
        return
    entry = next((d for d in analysis.trace.header.devices if d.id == found.device), None)
    capacity = entry.total_memory_bytes if entry else None
    if not capacity or found.reserved < options.held * capacity:
        return
    used, held = _peaks(analysis, found.device)
    apart = (held >= options.held * capacity) & (used <= (1 - options.unused) * held)
    if int(apart.sum()) < options.min_steps:
        return
    calls = driver_calls(analysis)
    retries = calls.returned.size > 0
    most_used, most_held = int(used[apart].max()), int(held[apart].max())
    share = 1 - most_used / most_held
    yield Hit(
        message=(
            f"The allocator holds {size(most_held)} of the device's {size(capacity)}, of which "
            f"tensors use {size(most_used)} at most: {percent(share)} is in pieces or left over."
            f"{' Memory goes back to the driver within steps.' if retries else ''}"
        ),
        evidence=(
            Evidence("unused_share", round(share, 4), "ratio", "derived"),
            Evidence("held", most_held, "bytes"),
            Evidence("used", most_used, "bytes"),
            Evidence("device_memory", capacity, "bytes"),
        ),
        fix=Fix(
            summary="Let segments grow in place of splitting them; run the largest shape first.",
            snippet="os.environ['PYTORCH_ALLOC_CONF'] = 'expandable_segments:True'  # before "
            "import torch",
            reference=_NOTES,
        ),
        confidence=0.4,
        keep=True,
        at_least="high" if retries else "medium" if trains(analysis) else "info",
    )


def _peaks(analysis: Analysis, device: int) -> tuple[IntArray, IntArray]:
    """Highest allocated and highest held total of each step, bytes; 0 where not recorded."""
    memory, steps = analysis.trace.memory, analysis.trace.steps
    mine = memory["device"].to_numpy() == device
    step = steps.of(memory["ts_ns"].to_numpy())
    mine &= step >= 0
    result = []
    for name in ("allocated", "reserved"):
        top = np.zeros(max(steps.count, 1), dtype=np.int64)
        np.maximum.at(top, step[mine], memory[name].to_numpy()[mine])
        result.append(top)
    return result[0], result[1]


def _held(t: TraceBuilder, used_gib: int) -> None:
    for step in range(4):
        at = step * 1_000
        t.step(at, 1_000)
        t.annotation("Optimizer.step#SGD.step", at + 500, 100)
        t.memory(1 << 20, used_gib << 30, at + 20, reserved=120 << 30)
        t.memory(-(1 << 20), (used_gib << 30) - (1 << 20), at + 600, reserved=120 << 30)


def _pieces(t: TraceBuilder) -> None:
    _held(t, 70)


def _used(t: TraceBuilder) -> None:
    _held(t, 112)


RULE = Rule(
    code="MM304",
    name="allocator-fragmentation",
    class_="memory",
    summary="The allocator holds much more memory than tensors use, and the device is nearly full.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"memory"}),
    evidence="S",
    references=(_NOTES,),
    remedies=("expandable-segments",),
    examples=(
        Example("120 of 140 GiB held, 70 used", _pieces, fires=True),
        Example("120 held, 112 used", _used, fires=False),
    ),
)
