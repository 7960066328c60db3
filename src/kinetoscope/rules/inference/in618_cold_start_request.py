"""The first request pays for what could have been done before it.

## What it finds
Requests that take at least five times as long as usual and load device code, compile, take memory
from the driver or try algorithms out meanwhile.

## Why it matters
The first user of each process, and the first of each new shape, waits that long. It shows in the
99th percentile and in every restart of the server.

## How to fix it
Send requests of every shape through the model before the server reports ready. Keep compiled code
(`TORCHINDUCTOR_CACHE_DIR`, AOTInductor) and reserve memory at the start.

## Limits
A recording shows only requests that it contains: a server that was warm when recording began shows
none. Slow requests without such work have another cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import clip, measure
from kinetoscope.result import Evidence, Fix
from kinetoscope.result.finding import Severity
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.inference._requests import serves
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.torch_frames import is_code_loading
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration, times

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """What is a cold request."""

    min_requests: int = 4
    """Recorded requests; with fewer nothing is usual."""
    min_ratio: float = 5.0
    """Length over the median."""
    min_explained: float = 0.2
    """Part of the excess in loading, compiling or taking memory."""
    often: float = 0.05
    """Part of the requests from which on a cold one is no exception."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Compare requests with the usual one, and look at what the long ones did."""
    edges = analysis.trace.steps.edges
    lengths = np.diff(edges)
    if not serves(analysis) or lengths.size < options.min_requests:
        return
    usual = max(int(np.median(lengths)), 1)
    long = np.flatnonzero(lengths >= options.min_ratio * usual)
    work = {name: analysis.extent(rows) for name, rows in _cold_work(analysis).items()}
    spent = {
        int(i): {name: measure(clip(span, edges[i], edges[i + 1])) for name, span in work.items()}
        for i in long
    }
    cold = [
        i for i in spent if sum(spent[i].values()) >= options.min_explained * (lengths[i] - usual)
    ]
    if not cold:
        return
    often = len(cold) > 1 and len(cold) >= options.often * lengths.size
    severity: Severity = "medium" if often else "info"
    worst = max(cold, key=lambda i: int(lengths[i]))
    doing = max(spent[worst], key=lambda name: spent[worst][name])
    which = "The first request" if cold == [0] else f"{count(len(cold))} of the requests"
    yield Hit(
        message=(
            f"{which} took up to {times(float(lengths[worst] / usual))} as long as usual "
            f"({duration(int(lengths[worst]))}), {duration(spent[worst][doing])} of it {doing}."
        ),
        evidence=(
            Evidence("cold_requests", len(cold), "count"),
            Evidence("longest", int(lengths[worst]), "ns"),
            Evidence("usual", usual, "ns"),
            Evidence("explained", sum(spent[worst].values()), "ns"),
        ),
        fix=Fix(
            summary="Send a request of every shape through the model before the server is ready.",
            snippet="with torch.inference_mode():\n    for shape in shapes:\n"
            "        model(torch.zeros(shape, device=device))",
            reference="https://docs.pytorch.org/docs/stable/torch.compiler_aot_inductor.html",
        ),
        confidence=0.9,
        at_least=severity,
        at_most=severity,
        keep=True,
    )


def _cold_work(analysis: Analysis) -> dict[str, IntArray]:
    """Rows of work that a warm program does not do, by what it is."""
    return {
        "loading device code": analysis.matching(is_code_loading),
        "compiling": analysis.rows(Kind.COMPILE),
        "taking memory from the driver": analysis.rows(Kind.ALLOC_CALL),
    }


def _requests(t: TraceBuilder, *, loading: float) -> None:
    at = 0.0
    for step in range(5):
        length = 10_000 if step == 0 else 1_000
        t.step(at, length)
        if step == 0:
            t.runtime("cuLibraryLoadData", at + 20, loading, cat="cuda_driver")
        t.kernel("gemm", at + length - 900, 800, launch_at=at + length - 950)
        at += length


def _loads(t: TraceBuilder) -> None:
    _requests(t, loading=8_000)


def _only_long(t: TraceBuilder) -> None:
    _requests(t, loading=100)


RULE = Rule(
    code="IN618",
    name="cold-start-request",
    class_="framework",
    summary="The first request pays for loading, compiling and memory.",
    check=check,
    options=Thresholds(),
    evidence="T",
    references=("https://docs.pytorch.org/docs/stable/torch.compiler_aot_inductor.html",),
    examples=(
        Example("a first request of 10 ms that loads code", _loads, fires=True),
        Example("a long first request for another reason", _only_long, fires=False),
    ),
)
