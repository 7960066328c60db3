"""A part without gradients computes the same in each step of training, as far as can be seen.

## What it finds
A module that is called in every step of training without gradients, on an input that no operator
of the step makes, that is not copied to the device or cut out of something larger, and whose rows
have nothing to do with the batch of what is trained.

## Why it matters
A frozen encoder gives the same result for the same input. The names of the classes that an image
encoder is tuned against, the prompt of a negative example, the coordinates of a fixed grid do not
change, so what is made of them need not be made again in each step.

## How to fix it
Compute it once, before the loop, and keep the result, as a buffer where it belongs to a module.
What a step needs of it is picked by index. After a change of the part's weights compute it anew.

## Limits
A recording holds sizes and no values: that the input is the same is likely, not known. Ask before
you change it. Parts are modules that the step calls itself; a frozen module inside one that is
trained is not looked at, nor one whose input has as many rows as the batch, a multiple or a part of
them: a teacher reads what its student reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.frozen import FrozenPart, frozen_parts
from kinetoscope.metrics.intervals import union
from kinetoscope.metrics.phase import trains
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Location
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import (
    apart,
    busy_share,
    device_work,
    extent_of,
    per_step_ns,
    places,
)
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_URL = (
    "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html"
    "#torch.nn.Module.register_buffer"
)


class Thresholds(Options, frozen=True):
    """When computing again is worth a question."""

    min_share: float = 0.05
    """Share of the device's busy time."""
    host: tuple[float, float, float] = (0.8, 1.0, 1.0)
    """Part of the host time of the calls that goes with them."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Look for frozen parts with an input of their own, and replay the steps without them."""
    if not analysis.get(trains):
        return
    work = device_work(analysis)
    least = int(options.min_share * analysis.busy_per_step_ns * analysis.steps)
    for part in frozen_parts(work, least):
        rows = work.rows[part.events]
        share = busy_share(analysis, rows)
        if share >= options.min_share:
            yield _hit(analysis, part, options, share)


def _hit(analysis: Analysis, part: FrozenPart, options: Thresholds, share: float) -> Hit:
    trace, work = analysis.trace, device_work(analysis)
    rows, calls = work.rows[part.events], np.unique(work.call[part.events])
    module = trace.names[trace.column("name_id")[trace.tree.rows[part.nodes[0]]]]
    name = module.removeprefix("nn.Module: ").rpartition("_")[0]
    host = union(trace.tree.start[part.nodes], trace.tree.end[part.nodes])
    spent = per_step_ns(analysis, rows)
    return Hit(
        message=(
            f"`{name}` runs without gradients in each step on {count(part.shape[0])} rows that "
            f"nothing in the step makes or brings: {duration(spent)}, "
            f"{percent(min(share, 1.0))} of the device's busy time. If they do not change, "
            f"neither does its result."
        ),
        evidence=(
            Evidence("device_time", spent, "ns"),
            Evidence("busy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("rows", part.shape[0], "count"),
        ),
        locations=_places(analysis, rows),
        fix=Fix(
            summary=f"If the input of `{name}` is always the same, compute the result once, before "
            "the loop, and keep it.",
            snippet="with torch.no_grad():\n    known = frozen(inputs)   # once, before the loop",
            reference=_URL,
        ),
        gain=analysis.gain(
            *(
                Change(drop_calls=calls[calls >= 0], host_cut=host, host_cut_factor=kept)
                for kept in options.host
            )
        ),
        confidence=0.4,
        claims=extent_of(analysis, rows),
        at_most="medium",
    )


def _places(analysis: Analysis, rows: IntArray) -> tuple[Location, ...]:
    """First the function that calls the part and no other module, then where its time goes."""
    work, module = device_work(analysis), analysis.trace.tree.module
    inside = module[np.maximum(analysis.trace.links.node[work.rows], 0)] >= 0
    others = work.rows[~np.isin(work.rows, rows) & ~work.backward & inside]
    outer = apart(analysis, analysis.in_window(rows), analysis.in_window(others))
    known = {(place.file, place.function, place.module) for place in outer}
    inner = places(analysis, rows, calls=("forward",))[:2]
    return outer + tuple(p for p in inner if (p.file, p.function, p.module) not in known)


def _tuned(t: TraceBuilder, *, rows: int, copied: bool = False) -> None:
    """Steps of 2 ms: an encoder of `rows` x 24 tokens, then a layer that is trained on 96 rows."""
    for step in range(4):
        at = step * 2_000.0
        t.step(at, 2_000)
        t.python("train.py(10): step", at + 1, 330)
        if copied:
            t.op("aten::copy_", at + 3, 12, dims=[[rows, 24], [rows, 24], []])
            t.copy("HtoD Pinned", rows * 24 * 8, at + 10, 4, launch_at=at + 5)
        t.module("Encoder_0", at + 20, 100)
        t.op("aten::embedding", at + 22, 12, dims=[[9_000, 64], [rows, 24], [], [], []])
        t.kernel("indexSelectLargeIndex", at + 40, 20, launch_at=at + 26)
        t.op("aten::mm", at + 40, 12, dims=[[rows * 24, 64], [64, 64]])
        t.kernel("sm90_gemm", at + 60, 900, launch_at=at + 44)
        t.module("Linear_0", at + 130, 50)
        t.op("aten::linear", at + 132, 40, dims=[[96, 64], [64, 64], [64]], seq=step + 1)
        t.kernel("sm90_gemm", at + 960, 300, launch_at=at + 140)
        t.backward("AddmmBackward0", at + 200, 60, seq=step + 1)
        t.kernel("sm90_gemm", at + 1_260, 600, launch_at=at + 210, tid=1001)
        t.annotation("Optimizer.step#AdamW.step", at + 300, 20)


def _names(t: TraceBuilder) -> None:
    _tuned(t, rows=400)


def _teacher(t: TraceBuilder) -> None:
    _tuned(t, rows=192)


def _brought(t: TraceBuilder) -> None:
    _tuned(t, rows=400, copied=True)


RULE = Rule(
    code="CP230",
    name="frozen-part-computed-again",
    class_="compute",
    summary="A part without gradients computes the same in each step, as far as can be seen.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "ops", "shapes", "stacks"}),
    evidence="T",
    references=(_URL,),
    examples=(
        Example("an encoder of 400 names beside a batch of 96", _names, fires=True),
        Example("an encoder of twice the batch", _teacher, fires=False),
        Example("names that are copied to the device in each step", _brought, fires=False),
    ),
)
