"""The device's memory is nearly full.

## What it finds
The allocator holds more than 90 % of the device's memory at its peak, and most of that is in use
by tensors.

## Why it matters
A slightly longer sequence, a library's workspace or another process is enough for an
out-of-memory error; before that the allocator begins to flush its cache (MM303), which is slow.

## How to fix it
Make room: a smaller micro-batch with gradient accumulation, activation checkpointing, bf16
weights or states, sharding (FSDP). `torch.cuda.memory._record_memory_history()` shows what holds
the peak.

## Limits
Memory that the allocator holds but no tensor uses is a cache, not pressure; below 75 % in use the
rule keeps quiet. A server that reserves its KV cache in advance is full on purpose. On a device
that is shared or partitioned the recorded size may not be the budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.growth import growth
from kinetoscope.result import Evidence, Fix
from kinetoscope.result.finding import Severity
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.data_loading._input import trains
from kinetoscope.units import percent, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When memory is nearly full."""

    reserved: float = 0.90
    """Share of the device that the allocator holds; TensorBoard's plugin used the same border."""
    very_full: float = 0.95
    """From here on the finding is high."""
    in_use: float = 0.75
    """Share of the device that tensors use; below, the rest is cache."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Compare the peak with the device's size."""
    found = analysis.get(growth)
    if found is None or found.device < 0:
        return
    capacity = next(
        (d.total_memory_bytes for d in analysis.trace.header.devices if d.id == found.device), None
    )
    if not capacity:
        return
    held, used = found.reserved / capacity, found.peak / capacity
    if held < options.reserved or used < options.in_use:
        return
    yield Hit(
        message=f"The allocator holds {size(found.reserved)} of the device's {size(capacity)} "
        f"({percent(min(held, 1.0))}); tensors use {size(found.peak)} at the peak.",
        evidence=(
            Evidence("reserved_share", round(min(held, 1.0), 4), "ratio"),
            Evidence("reserved_peak", found.reserved, "bytes"),
            Evidence("allocated_peak", found.peak, "bytes"),
            Evidence("device_memory", capacity, "bytes"),
        ),
        fix=Fix(
            summary="Make room: a smaller micro-batch, activation checkpointing, or sharding.",
            snippet="torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
            reference="https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",
        ),
        confidence=0.9,
        keep=True,
        at_least=_severity(held, options, training=trains(analysis)),
    )


def _severity(held: float, options: Thresholds, *, training: bool) -> Severity:
    if not training:
        return "info"
    return "high" if held > options.very_full else "medium"


def _tight(t: TraceBuilder) -> None:
    for step in range(3):
        t.step(step * 1_000, 1_000)
        t.annotation("Optimizer.step#SGD.step", step * 1_000 + 500, 100)
        t.memory(1 << 20, 132 << 30, step * 1_000 + 20, reserved=136 << 30)
        t.memory(-(1 << 20), (132 << 30) - (1 << 20), step * 1_000 + 600, reserved=136 << 30)


def _cache(t: TraceBuilder) -> None:
    for step in range(3):
        t.step(step * 1_000, 1_000)
        t.annotation("Optimizer.step#SGD.step", step * 1_000 + 500, 100)
        t.memory(1 << 20, 40 << 30, step * 1_000 + 20, reserved=136 << 30)
        t.memory(-(1 << 20), (40 << 30) - (1 << 20), step * 1_000 + 600, reserved=136 << 30)


RULE = Rule(
    code="MM301",
    name="near-capacity-memory",
    class_="memory",
    summary="The device's memory is nearly full.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"memory"}),
    evidence="S",
    remedies=("expandable-segments",),
    references=("https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",),
    examples=(
        Example("136 of 140 GiB held, nearly all in use", _tight, fires=True),
        Example("as much held, most of it cache", _cache, fires=False),
    ),
)
