"""Inference on the CPU takes new memory from the system for every result.

## What it finds
A recording without a device in which the operators that allocate (`empty`, `empty_strided`,
`resize_`) take at least a twentieth of the step by themselves, profiling overhead taken off.

## Why it matters
The C library returns large blocks to the system at once; each new one costs page faults, about a
quarter of a millisecond a megabyte, which show up in `empty` or in the first operator that writes.

## How to fix it
Preload jemalloc or tcmalloc, which keep blocks; reuse output buffers; `torch.compile` plans memory.

## Limits
A preview. Page faults in the operator that first writes are not told from its work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._surroundings import net_ns, own_stretches
from kinetoscope.rules.inference._requests import serves
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.op_names import short_name
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_ALLOCATING = frozenset({"empty", "empty_strided", "empty_like", "resize_"})
_URL = "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"


class Thresholds(Options, frozen=True):
    """When allocation is worth a word."""

    min_share: float = 0.05
    """Own time of these operators as a share of the likely step."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Add the own time of allocating operators up."""
    if analysis.device is not None or not serves(analysis):
        return
    trace, tree = analysis.trace, analysis.trace.tree
    flag = trace.tree.named(lambda name: short_name(name) in _ALLOCATING)
    flag &= tree.kind == Kind.CPU_OP
    own = own_stretches(analysis, flag)
    spent = net_ns(analysis, own)
    share = spent / max(analysis.step_time.mid, 1)
    if share < options.min_share:
        return
    rows = analysis.in_steps(tree.rows[flag])
    yield Hit(
        message=(
            f"Taking memory for results takes {duration(spent)} of each step on the CPU, "
            f"{percent(min(share, 1.0))} of it."
        ),
        evidence=(
            Evidence("allocation_time", spent, "ns", "estimated"),
            Evidence("allocation_recorded", measure(own) // analysis.steps_on_host, "ns"),
            Evidence("allocations", round(rows.size / analysis.steps_on_host, 1), "count"),
        ),
        locations=analysis.locations(rows),
        fix=Fix(
            summary="Preload an allocator that keeps memory.",
            snippet="LD_PRELOAD=libjemalloc.so python serve.py",
            reference=_URL,
        ),
        gain=analysis.gain(
            Change(host_cut=own, host_cut_factor=0.3),
            Change(host_cut=own, host_cut_factor=0.7),
            Change(host_cut=own),
        ),
        confidence=0.4,
        claims=own,
        at_most="medium",
    )


def _serving(t: TraceBuilder, empty_us: float) -> None:
    for step in range(4):
        at = step * 1_000.0
        t.step(at, 1_000)
        t.op("aten::add", at + 10, 900)
        t.op("aten::empty", at + 20, empty_us)


def _slow(t: TraceBuilder) -> None:
    _serving(t, 300)


def _quick(t: TraceBuilder) -> None:
    _serving(t, 4)


RULE = Rule(
    code="IN621",
    name="cpu-allocator-overhead",
    class_="memory",
    summary="Inference on the CPU takes new memory from the system for every result.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops"}),
    evidence="L",
    references=(_URL,),
    examples=(
        Example("30 % of the step in `empty`", _slow, fires=True),
        Example("4 µs in `empty`", _quick, fires=False),
    ),
    preview=True,
)
