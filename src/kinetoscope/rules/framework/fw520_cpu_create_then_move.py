"""A tensor is created on the host and then moved, though the device could create it itself.

## What it finds
A factory (`torch.randn`, `zeros`, `full`, `arange`, ...) runs on the CPU, perhaps a few operators
on its result, and then `.to(device)` copies it.

## Why it matters
The CPU fills the memory at a few GB/s, the copy from pageable memory makes the host wait for the
device, and the device waits for both. On the device the same tensor takes microseconds.

## How to fix it
Pass the device to the factory: `torch.randn(n, device=device)`. For tensors that never change
(masks, positions) create them once: `self.register_buffer("mask", ...)`.

## Limits
Random numbers differ between CPU and device generators; keep the CPU's where a run must be
reproduced bit by bit. A recording without steps is left alone: it may hold the program's start,
which moves the whole model. Tensors built from data (`torch.tensor(list)`, `from_numpy`) are
input, not creations, and are left to the rules about input. So is data that a tensor made on the
host is applied to (weights, windows), where recorded shapes tell it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Intervals, intersect, measure, merge, union
from kinetoscope.metrics.ownership import FACTORIES
from kinetoscope.metrics.transfers import Purpose, Transfers, extent_of, transfers
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.cold import COLD_NS, with_cold_start
from kinetoscope.rules.data_loading._copies import Mask
from kinetoscope.rules.data_loading._input import idle, in_window
from kinetoscope.rules.spread import spread
from kinetoscope.units import duration, percent, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_LAUNCH_NS = 10_000
"""Host time of an operator that creates the tensor on the device."""


class Thresholds(Options, frozen=True):
    """When creating on the host is worth a word."""

    min_share: float = 0.01
    """Host time for creating and moving, as a share of the step."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Follow copies to the device back to the factory that made what they carry."""
    copies = analysis.get(transfers)
    mine = in_window(analysis, copies) & copies.of(Purpose.CREATED)
    if not mine.any():
        return
    spent = _host_time(analysis, copies, mine)
    share = measure(spent) / (analysis.step_ns * analysis.steps_on_host)
    if share < options.min_share:
        return
    each = int(mine.sum()) / analysis.steps_on_host
    nbytes = int(copies.bytes[mine].sum()) // analysis.steps_on_host
    calls = copies.calls(mine)
    extra = int(_LAUNCH_NS * max(each, 1))
    likely, best = (with_cold_start(spent, cold) for cold in COLD_NS)
    yield Hit(
        message=f"The host creates {size(nbytes)} in each step and moves them to the device, which "
        f"could create them itself; it takes {duration(measure(spent) // analysis.steps_on_host)} "
        f"({percent(min(share, 1.0))} of the step).",
        evidence=(
            Evidence("host_share", round(min(share, 1.0), 4), "ratio"),
            Evidence("tensors_per_step", round(each, 1), "count"),
            Evidence("bytes_per_step", nbytes, "bytes"),
        ),
        locations=analysis.locations(
            copies.row[mine],
            copies.work_end[mine] - copies.work_start[mine],
            calls=tuple(sorted(FACTORIES)),
        ),
        fix=Fix(
            summary="Create the tensor on the device, or once before the loop if it never changes.",
            snippet="mask = torch.full((s, s), float('-inf'), device=x.device).triu(1)",
            reference="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
            "#create-tensors-directly-on-the-target-device",
        ),
        gain=spread(
            analysis.gain(
                Change(host_cut=spent, drop_calls=calls, extra_host_ns=4 * extra),
                Change(host_cut=likely, drop_calls=calls, extra_host_ns=2 * extra),
                Change(host_cut=best, drop_calls=calls),
            )
        ),
        confidence=0.9,
        claims=merge(intersect(spent, idle(analysis)), analysis.extent(copies.row[mine])),
    )


def _host_time(analysis: Analysis, copies: Transfers, mine: Mask) -> Intervals:
    """From each factory to the end of the copy's operator."""
    owner = np.where(copies.op >= 0, copies.op, copies.call)[mine]
    moving = extent_of(analysis.trace, owner)
    return merge(union(copies.work_start[mine], copies.work_end[mine]), moving)


def _creates_on_the_host(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 5_000
        t.step(at, 5_000)
        t.op("aten::randn", at + 10, 2_000)
        t.op("aten::to", at + 2_020, 900)
        t.copy("HtoD Pageable", 4 << 20, at + 2_060, 800, launch_at=at + 2_040, launch_dur=850)
        t.kernel("gemm", at + 2_950, 2_000, launch_at=at + 2_940)


def _data_of_the_same_size(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 5_000
        t.step(at, 5_000)
        t.op("aten::index_select", at + 10, 2_000)
        t.op("aten::to", at + 2_020, 900)
        t.copy("HtoD Pageable", 4 << 20, at + 2_060, 800, launch_at=at + 2_040, launch_dur=850)
        t.kernel("gemm", at + 2_950, 2_000, launch_at=at + 2_940)


def _weights_for_data(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 5_000
        t.step(at, 5_000)
        t.op("aten::linspace", at + 10, 20)
        t.op("aten::sigmoid", at + 40, 20, dims=[[16_384]])
        t.op("aten::mul", at + 70, 1_900, dims=[[64, 16_384], [16_384]])
        t.op("aten::to", at + 2_020, 900)
        t.copy("HtoD Pageable", 4 << 20, at + 2_060, 800, launch_at=at + 2_040, launch_dur=850)
        t.kernel("gemm", at + 2_950, 2_000, launch_at=at + 2_940)


RULE = Rule(
    code="FW520",
    name="cpu-create-then-move",
    class_="framework",
    summary="A tensor is created on the host and moved, though the device could create it.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "ops", "steps"}),
    evidence="ET",
    references=("https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",),
    examples=(
        Example("random numbers made on the CPU for each step", _creates_on_the_host, True),
        Example("samples picked from a data set", _data_of_the_same_size, False),
        Example("samples weighted by numbers made for each step", _weights_for_data, False),
    ),
)
