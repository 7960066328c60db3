"""The program waits for its own collective at once instead of computing meanwhile.

## What it finds
Collectives that the user's own code calls outside of modules, hardly overlapped by any kernel, at
least 5 % of the step.

## Why it matters
`dist.all_reduce(t)` makes the stream wait for the result right away. With `async_op=True` the
kernels that do not need it run meanwhile.

## How to fix it
`work = dist.all_reduce(t, async_op=True)`, then what does not need the result, then `work.wait()`.

## Limits
Whether later kernels need the result is not in a recording, so this is a hint, off by default.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.comm import OWNER_USER
from kinetoscope.metrics.intervals import Coverage
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.communication._calls import exposed_comm, in_steady_steps
from kinetoscope.rules.communication.cm401_exposed_communication import hide
from kinetoscope.units import duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When to give the hint."""

    min_share: float = 0.05
    """Exposed time of these collectives as a share of the step."""
    max_overlap: float = 0.1
    """Part of them under kernels."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find exposed collectives of the user's own code."""
    comm = analysis.comm
    positions = in_steady_steps(analysis)
    node = analysis.trace.links.node[comm.row[positions]]
    module = (node >= 0) & (analysis.trace.tree.module[np.maximum(node, 0)] >= 0)
    positions = positions[(comm.owner[positions] == OWNER_USER) & ~module]
    if not positions.size or not comm.on_device:
        return
    found = exposed_comm(analysis)
    exposed = np.zeros(comm.row.size, dtype=np.int64)
    exposed[positions] = Coverage(found.stretches).between(comm.start, comm.end)[positions]
    ns = int(exposed.sum()) // analysis.steps
    hidden = 1.0 - comm.exposed[positions].sum() / max(int(comm.duration[positions].sum()), 1)
    if ns < options.min_share * analysis.step_ns or hidden > options.max_overlap:
        return
    yield Hit(
        message=(
            f"The program's own collectives take {duration(ns)} of each step with no kernel beside."
        ),
        evidence=(Evidence("exposed_time", ns, "ns"),),
        locations=analysis.locations(comm.row[positions], calls=("all_reduce", "all_gather")),
        fix=Fix(
            summary="Start the collective, compute what does not need it, then wait.",
            snippet="work = dist.all_reduce(t, async_op=True)\n...\nwork.wait()",
            reference="https://docs.pytorch.org/docs/stable/distributed.html",
        ),
        gain=analysis.gain(
            hide(analysis, exposed, 0.0),
            hide(analysis, exposed, 0.3),
            hide(analysis, exposed, 0.8),
        ),
        confidence=0.4,
        at_most="medium",
        claims=found.stretches,
    )


def _steps(t: TraceBuilder, *, beside: int) -> None:
    for i in range(4):
        at = 10_000 * i
        t.step(at, 10_000)
        t.python("train.py(10): step", at + 10, 9_900)
        t.all_reduce(at + 100, 3_000, launch_at=at + 20)
        t.kernel("gemm", at + 3_105 - beside, 6_000, launch_at=at + 50)
        t.sync(at + 80, 9_040 - beside)


def _alone(t: TraceBuilder) -> None:
    _steps(t, beside=0)


def _together(t: TraceBuilder) -> None:
    _steps(t, beside=2_900)


RULE = Rule(
    code="CM422",
    name="immediate-wait-after-async",
    class_="communication",
    summary="The program waits for its own collective at once instead of computing meanwhile.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "stacks"}),
    evidence="L",
    references=("https://docs.pytorch.org/docs/stable/distributed.html",),
    examples=(
        Example("3 ms of all-reduce, then the kernels", _alone, True),
        Example("the kernels run meanwhile", _together, False),
    ),
    preview=True,
)
