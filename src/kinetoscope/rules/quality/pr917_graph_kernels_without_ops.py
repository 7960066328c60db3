"""Kernels of a replayed graph cannot be traced to operators.

## What it finds
At least 20 % of the device events were launched by replaying a captured graph.

## Why it matters
A replay is one call. Its kernels share one correlation id, so neither operator, nor module, nor
line is known for them.

## How to fix it
Nothing is wrong with the program. To see places, record it once without graphs, or record the
capture.

## Limits
Names and order of the kernels still tell a lot.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.result import Evidence
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.quality._examples import healthy
from kinetoscope.rules.quality._notice import notice
from kinetoscope.trace.kinds import Kind
from kinetoscope.units import percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

REFERENCE = "https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs"


class Thresholds(Options, frozen=True):
    """When to speak."""

    min_share: float = 0.2
    """Part of the device events."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Kernels of a replayed graph cannot be traced to operators."""
    rows = analysis.times.device_rows
    launch = analysis.trace.links.launch[rows]
    kind = analysis.trace.column("kind")[launch[launch >= 0]]
    share = float((kind == Kind.GRAPH_LAUNCH).sum()) / max(rows.size, 1)
    if share < options.min_share:
        return
    yield notice(
        f"{percent(share)} of the device events come from replayed graphs: their operators and "
        "lines are unknown.",
        fix="To see places, record the program once without graphs.",
        reference=REFERENCE,
        evidence=(Evidence("events_from_graphs", round(share, 4), "ratio"),),
    )


def _bad(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 1_000
        t.step(at, 1_000)
        t.kernel("gemm", at + 50, 100, launch_at=at + 10, launch="cudaGraphLaunch", corr=500 + step)
        t.kernel("gemm", at + 151, 100, corr=500 + step)
        t.kernel("gemm", at + 252, 100, corr=500 + step)


def _good(t: TraceBuilder) -> None:
    healthy(t, steps=4)


RULE = Rule(
    code="PR917",
    name="graph-kernels-without-ops",
    class_="quality",
    summary="Kernels of replayed graphs have no operators.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device"}),
    evidence="T",
    references=(REFERENCE,),
    examples=(
        Example("a replay of three kernels", _bad, fires=True),
        Example("a healthy recording", _good, fires=False),
    ),
)
