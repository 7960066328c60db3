"""DDP searches the autograd graph for unused parameters in every step.

## What it finds
The reducer's `search_unused_parameters` in at least half of the steps.

## Why it matters
With `find_unused_parameters=True` DDP walks over the whole graph after each forward, on the host,
and sends a bitmap of the used parameters in an all-reduce of its own after each backward.

## How to fix it
Leave `find_unused_parameters=False` if every parameter takes part in every step. If some never
do, freeze or remove them; if always the same ones do not, `static_graph=True` searches once.

## Limits
Whether some parameters are really unused is not in the recording: then DDP needs the search, and
without it the next step fails with a clear error. How much later the buckets leave because of it
is not predicted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.comm import OWNER_DDP
from kinetoscope.metrics.intervals import measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.communication._calls import in_steady_steps, intrinsic_ns, launches_of
from kinetoscope.rules.communication._ranges import host_time, ranges, steps_with
from kinetoscope.trace.distributed_frames import is_ddp_forward, is_unused_search
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When the search belongs to the step."""

    min_steps: float = 0.5
    """Part of the steps that must search; static graphs search once."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Replay the step without the search and its bitmap."""
    nodes = ranges(analysis, is_unused_search)
    steps = analysis.steps_on_host
    if not nodes.size or steps_with(analysis, nodes) < options.min_steps * steps:
        return
    search = host_time(analysis, nodes)
    bitmap = _bitmaps(analysis)
    comm = analysis.comm
    cost = int(intrinsic_ns(analysis)[bitmap].sum()) // steps if bitmap.size else 0
    both = Change(host_cut=search, drop_calls=launches_of(analysis, comm.row[bitmap]))
    tail = f" and {duration(cost)} for an all-reduce of the result" if bitmap.size else ""
    forward = analysis.trace.tree.rows[ranges(analysis, is_ddp_forward)]
    yield Hit(
        message=(
            f"DDP looks for unused parameters in every step: {duration(measure(search) // steps)} "
            f"on the host{tail}."
        ),
        evidence=(
            Evidence("search_time", measure(search) // steps, "ns"),
            Evidence("bitmap_time", cost, "ns", "derived"),
        ),
        locations=analysis.locations(forward if forward.size else analysis.trace.tree.rows[nodes]),
        fix=Fix(
            summary=(
                "Set find_unused_parameters=False; if the same parameters are unused in every "
                "step, static_graph=True."
            ),
            snippet="DistributedDataParallel(model, find_unused_parameters=False)",
            reference="https://docs.pytorch.org/docs/stable/generated/"
            "torch.nn.parallel.DistributedDataParallel.html",
        ),
        gain=analysis.gain(Change(host_cut=search), both),
        confidence=0.9,
        claims=search,
        at_least="info",
    )


def _bitmaps(analysis: Analysis) -> IntArray:
    """DDP's all-reduces of integers: which parameters were used."""
    comm = analysis.comm
    positions = in_steady_steps(analysis)
    integers = np.array([m.dtype.lower() in ("int", "long") for m in comm.messages], dtype=bool)
    if not integers.any():
        return positions[:0]
    sent = positions[integers[comm.message[positions]]]
    by_ddp: IntArray = sent[comm.owner[sent] == OWNER_DDP]
    return by_ddp


def _step(t: TraceBuilder, at: int, search: int) -> None:
    t.step(at, 10_000)
    t.annotation("DistributedDataParallel.forward", at + 10, 2_000 + search)
    t.kernel("gemm", at + 100, 2_000, launch_at=at + 50)
    if search:
        t.annotation("torch.distributed.ddp.reducer::search_unused_parameters", at + 2_000, search)
    t.kernel("gemm", at + 2_100 + search, 7_000 - search, launch_at=at + 2_050 + search)
    t.sync(at + 2_100 + search, 7_050 - search)


def _searches(t: TraceBuilder) -> None:
    for i in range(4):
        _step(t, 10_000 * i, 1_500)


def _once(t: TraceBuilder) -> None:
    for i in range(4):
        _step(t, 10_000 * i, 1_500 if i == 1 else 0)


RULE = Rule(
    code="CM409",
    name="ddp-find-unused-parameters",
    class_="communication",
    summary="DDP searches the graph for unused parameters in every step.",
    check=check,
    options=Thresholds(),
    evidence="E",
    remedies=("ddp-no-unused-search",),
    references=("https://docs.pytorch.org/docs/stable/notes/ddp.html",),
    examples=(
        Example("1.5 ms of search while the device waits, in each step", _searches, True),
        Example("a search in one of four steps: static_graph=True", _once, False),
    ),
)
