"""Device and host both wait for the next request.

## What it finds
The device is idle for a good part of an inference recording, and in that time the launching
thread waits in a queue, a socket, a lock or a sleep, or runs nothing at all.

## Why it matters
Nothing is wrong with the model: the server has less to do than it can. Measures of utilisation
from such a recording say nothing about its limits.

## How to fix it
Measure under load: more requests at a time, a load generator that does not wait for each answer,
or a longer batching window.

## Limits
Informational. A program that waits for its own worker threads looks alike; look at the place
that is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.activity import Cause
from kinetoscope.metrics.phase import trains
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.units import percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_URL = (
    "https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/"
    "perf_benchmark/perf_analyzer.html"
)


class Thresholds(Options, frozen=True):
    """When the server counts as unloaded."""

    min_share: float = 0.2
    """Idle time with a waiting host as a share of the recording."""
    min_wait_ns: int = 500_000
    """Shorter waits happen between the steps of one request."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Add up the idle time in which the launching thread waits or does nothing."""
    if analysis.get(trains):
        return
    pieces = analysis.pieces
    waiting = np.isin(pieces.cause, (Cause.WAIT, Cause.NOTHING))
    waiting &= pieces.ns >= options.min_wait_ns
    low, high = analysis.window
    share = int(pieces.ns[waiting].sum()) / max(high - low, 1)
    if share < options.min_share:
        return
    rows = pieces.row[waiting]
    named = rows >= 0
    yield Hit(
        message=(
            f"For {percent(min(share, 1.0))} of the recording neither the device nor the host "
            "has anything to do: the server waits for requests."
        ),
        evidence=(
            Evidence("waiting_share", round(min(share, 1.0), 4), "ratio"),
            Evidence("waits", int(waiting.sum()), "count"),
        ),
        locations=analysis.locations(rows[named], pieces.ns[waiting][named]),
        fix=Fix(
            summary="Record under load: several requests at a time.",
            reference=_URL,
        ),
        confidence=0.7,
        at_most="info",
        keep=True,
    )


def _unloaded(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000.0
        t.step(at, 10_000)
        t.python("serve.py(10): loop", at + 5, 9_990)
        t.kernel("gemm", at + 130, 2_000, launch_at=at + 110, op="aten::mm")
        t.python("queue.py(154): get", at + 200, 9_700)


def _loaded(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000.0
        t.step(at, 10_000)
        t.python("serve.py(10): loop", at + 5, 9_990)
        t.kernel("gemm", at + 130, 9_900, launch_at=at + 110, op="aten::mm")
        t.python("queue.py(154): get", at + 200, 9_700)


RULE = Rule(
    code="IN617",
    name="idle-between-requests",
    class_="framework",
    summary="Device and host both wait for the next request.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "stacks"}),
    references=(_URL,),
    examples=(
        Example("a server that waits in its queue", _unloaded, fires=True),
        Example("requests queued while the device is busy", _loaded, fires=False),
    ),
)
