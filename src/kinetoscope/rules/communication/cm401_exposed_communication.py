"""Communication kernels run while no compute kernel does.

## What it finds
Time in which a device does nothing but communicate takes more than 5 % of the step. With the
recordings of all ranks only the transfer itself counts; waiting for a slow rank is another
finding. With a single rank the two cannot be told apart, and the message says so.

## Why it matters
A communication kernel occupies the stream from the moment its rank arrives until the data are
there. Whatever compute does not hide lengthens the step directly.

## How to fix it
First record all ranks: a rank that only waits needs no faster network. When it is transfer:
overlap it with the backward pass (DDP buckets, FSDP prefetch), send less (bf16 gradients, no
synchronisation in accumulated micro-batches), send it in fewer and larger messages.

## Limits
The last bucket after the backward pass cannot be hidden. A communication kernel that starts
early and spins waits for its peers; on one rank that looks like a slow network.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Coverage
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.communication._calls import (
    ExposedComm,
    comm_gain,
    exposed_comm,
    group_text,
    in_steady_steps,
    intrinsic_ns,
    per_step,
    waiting_known,
)
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When exposed communication is worth a word."""

    min_share: float = 0.05
    """Exposed communication as a share of the step; TraceLens warns from 5 % on."""
    likely_part: float = 0.5
    """Part of it that a fix usually hides: the tail after the backward pass stays."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Measure what no kernel hides, without waiting where the other ranks are known."""
    found = exposed_comm(analysis)
    if found.share < options.min_share:
        return
    positions = in_steady_steps(analysis)
    if positions.size == 0:
        return
    comm = analysis.comm
    exposed = Coverage(found.stretches).between(comm.start, comm.end)
    heaviest = _by_message(analysis, exposed)
    yield Hit(
        message=_message(found, heaviest),
        evidence=(
            Evidence("exposed_time", found.ns, "ns"),
            Evidence("exposed_share", round(found.share, 4), "ratio", "derived"),
            Evidence("overlap", round(max(found.overlap, 0.0), 4), "ratio", "derived"),
            Evidence("collectives", per_step(analysis, positions), "count"),
        ),
        locations=analysis.locations(comm.row, exposed, calls=("all_reduce", "backward")),
        fix=_fix(found, group_text(comm, positions)),
        gain=comm_gain(
            analysis,
            hide(analysis, exposed, 0.0 if not found.separated else 0.5 * options.likely_part),
            hide(analysis, exposed, options.likely_part),
            hide(analysis, exposed, 1.0),
            saved_ns=(int(options.likely_part * found.ns), found.ns),
        ),
        confidence=0.7 if found.separated else 0.4,
        at_most="critical" if found.separated else "medium",
        claims=found.stretches,
    )


def hide(analysis: Analysis, exposed: IntArray, part: float) -> Change:
    """Take a part of its exposed time off each collective."""
    comm = analysis.comm
    mine = np.flatnonzero(exposed > 0)
    known = waiting_known(analysis)
    cost = intrinsic_ns(analysis)[mine] if known else comm.duration[mine]
    times = comm.row[mine], np.maximum(cost - (part * exposed[mine]).astype(np.int64), 1000)
    return Change(transfers=times) if known else Change(durations=times)


def _by_message(analysis: Analysis, exposed: IntArray) -> str:
    """The collective with most exposed time, in words; "" when unknown."""
    comm = analysis.comm
    total: dict[str, int] = {}
    for i, message in enumerate(comm.messages):
        mine = int(exposed[comm.message == i].sum())
        total[message.collective] = total.get(message.collective, 0) + mine
    return max(total, key=lambda name: total[name]).replace("_", "-")


def _message(found: ExposedComm, heaviest: str) -> str:
    what = f"Communication (mostly {heaviest})" if heaviest else "Communication"
    text = f"{what} that no kernel hides takes {duration(found.ns)}, {percent(found.share)}"
    if found.separated:
        return f"{text} of each step, waiting for other ranks not counted."
    return f"{text} of each step: exposed communication, or waiting for a peer."


def _fix(found: ExposedComm, group: str) -> Fix:
    if found.separated:
        return Fix(
            summary="Overlap the transfer with the backward pass, or send less.",
            snippet="ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)",
            reference="https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html",
        )
    return Fix(
        summary=(
            f"Record all {group} and analyze them together: that separates a slow network "
            "from a rank that arrives late."
        ),
        snippet="kinetoscope analyze TRACES/   # a folder with one file a rank",
        reference="https://docs.pytorch.org/docs/stable/notes/ddp.html",
    )


def _exposed(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.kernel("gemm", at + 100, 5_000, launch_at=at + 50)
        t.all_reduce(at + 5_100, 4_800, launch_at=at + 80)
        t.sync(at + 120, 9_790)


def _hidden(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.kernel("gemm", at + 100, 9_600, launch_at=at + 50)
        t.all_reduce(at + 4_900, 4_800, launch_at=at + 80)
        t.sync(at + 120, 9_590)


RULE = Rule(
    code="CM401",
    name="exposed-communication",
    class_="communication",
    summary="Communication that no compute kernel hides takes a sizeable part of the step.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device"}),
    evidence="TE",
    remedies=("ddp-bf16-gradients",),
    references=("https://docs.pytorch.org/docs/stable/notes/ddp.html",),
    examples=(
        Example("an all-reduce after the backward pass takes half of the step", _exposed, True),
        Example("an all-reduce of the same length under a long kernel", _hidden, False),
    ),
)
