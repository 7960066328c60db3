"""Every step leaves memory behind: a leak.

## What it finds
The allocated total rises from step to step, and allocations of every judged step (all but the
last) are still alive at the end of the recording, about as many bytes each time. The rule pairs
allocations with frees by address and names the operators and functions whose allocations stay.

## Why it matters
It does not cost time, until memory is full: then the allocator starts to flush its cache (MM303),
and the program dies. Often what stays is not one tensor but the whole autograd graph behind it,
with all activations.

## How to fix it
Something outlives the step: a list or a sum of losses or outputs, a hook's closure, a cache
without a bound. Store numbers, not tensors with history: `total += loss.detach()`,
`outputs.append( out.detach().cpu())`; do not keep `retain_graph=True`; bound caches.

## Limits
A recording of a few steps cannot tell a leak from a cache that will stop growing: a replay
buffer, a KV cache within one request, states that an optimizer creates late. A first step that
leaves more than the others (optimizer states) is not counted. The function named is where the
memory was allocated; who holds it is not recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.growth import Growth, growth
from kinetoscope.result import Evidence, Fix, Location
from kinetoscope.result.finding import Severity
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.memory._holder import places
from kinetoscope.trace.frames import is_engine_call, is_optimizer_step
from kinetoscope.units import count, duration, percent, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When growth is worth a word."""

    min_bytes: int = 1 << 20
    """Bytes that a step must leave behind; less is bookkeeping, such as a list of losses."""
    min_steps: int = 3
    """Recorded steps from which on a trend can be seen; two of them are judged."""
    alike: float = 0.5
    """Each judged step leaves at least this part of what the median one leaves."""
    soon_ns: int = 3_600 * 10**9
    """A leak that fills the device within this time is critical (RULES: one hour)."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """See whether each step leaves about the same behind, and whether the total rises."""
    found = analysis.get(growth)
    if found is None or analysis.trace.steps.count < options.min_steps:
        return
    left = found.left[1:] if found.left.size >= 4 else found.left
    per_step = int(np.median(left))
    if per_step < options.min_bytes or left.min() < options.alike * per_step:
        return
    if not _rises(found, per_step):
        return
    room = _room(analysis, found)
    steps_left = room // per_step if room is not None else None
    trains = _trains(analysis)
    yield Hit(
        message=_message(analysis, found, per_step, steps_left),
        evidence=(
            Evidence("left_per_step", per_step, "bytes"),
            Evidence("steps_judged", int(left.size), "count"),
            Evidence("kept_from_forward", round(found.from_forward, 6), "ratio", "derived"),
            Evidence("allocated_peak", found.peak, "bytes"),
            *(
                (Evidence("steps_until_full", steps_left, "count", "estimated"),)
                if steps_left is not None
                else ()
            ),
        ),
        locations=_places(analysis, found),
        fix=Fix(
            summary="Do not keep tensors of a step beyond it: store numbers or detached copies, "
            "and clear or bound the list that collects them.",
            snippet="losses.append(loss.detach())   # not: losses.append(loss)\n"
            "total += loss.detach()         # not: total += loss",
            reference="https://docs.pytorch.org/docs/stable/notes/faq.html",
        ),
        confidence=0.9 if trains and left.size >= 2 else 0.4,
        keep=True,
        at_least=_severity(analysis, steps_left, options, trains=trains),
    )


def _rises(found: Growth, per_step: int) -> bool:
    """Does the lowest total of each step rise, in nearly all steps and by about that much?"""
    rise = np.diff(found.level)
    if rise.size == 0:
        return False
    return bool((rise > 0.5 * per_step).mean() >= 0.8)


def _room(analysis: Analysis, found: Growth) -> int | None:
    """Bytes that are left on the device; None when its size is not recorded."""
    for device in analysis.trace.header.devices:
        if device.id == found.device and device.total_memory_bytes:
            return max(device.total_memory_bytes - found.peak, 0)
    return None


def _severity(
    analysis: Analysis, steps_left: int | None, options: Thresholds, *, trains: bool
) -> Severity:
    if not trains:
        return "medium"
    if steps_left is None:
        return "high"
    return "critical" if steps_left * analysis.step_time.mid < options.soon_ns else "high"


def _message(analysis: Analysis, found: Growth, per_step: int, steps_left: int | None) -> str:
    text = f"Every step leaves {size(per_step)} allocated"
    if steps_left is not None:
        when = duration(steps_left * analysis.step_time.mid)
        text += f"; the device is full in about {count(steps_left)} steps ({when})"
    if found.from_forward > 0.5:
        text += (
            f". {percent(found.from_forward)} of it comes from the forward pass: something keeps a "
            "tensor with its graph"
        )
    elif _graph_grows(found):
        text += ". The backward pass has more nodes in every step: the graph itself grows"
    return text + "."


def _graph_grows(found: Growth) -> bool:
    """More autograd nodes in each step than in the one before (RULES, MM308)."""
    nodes = found.graph
    return bool(nodes.size >= 3 and nodes[0] > 0 and (np.diff(nodes) > 0.02 * nodes[:-1]).all())


def _trains(analysis: Analysis) -> bool:
    return any(is_engine_call(n) or is_optimizer_step(n) for n in analysis.trace.names)


def _places(analysis: Analysis, found: Growth) -> tuple[Location, ...]:
    known = found.rows >= 0
    return places(analysis, found.rows[known], found.bytes[known])


def _run(t: TraceBuilder, kept: int) -> None:
    total = 1 << 30
    for step in range(5):
        at = step * 1_000
        t.step(at, 1_000)
        t.op("aten::mm", at + 10, 100, seq=step)
        for i in range(4):
            total += 8 << 20
            address = 0x7F0000000000 + (1000 * step + i << 24)
            t.memory(8 << 20, total, at + 20 + i, address=address)
        t.backward("MmBackward0", at + 300, 200, seq=step)
        for i in range(kept, 4):
            total -= 8 << 20
            address = 0x7F0000000000 + (1000 * step + i << 24)
            t.memory(-(8 << 20), total, at + 600 + i, address=address)


def _keeps_one(t: TraceBuilder) -> None:
    _run(t, 1)


def _frees_all(t: TraceBuilder) -> None:
    _run(t, 0)


RULE = Rule(
    code="MM305",
    name="step-over-step-memory-growth",
    class_="memory",
    summary="Every step leaves memory behind that nothing frees.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"memory", "steps"}),
    evidence="TE",
    references=("https://docs.pytorch.org/docs/stable/notes/faq.html",),
    examples=(
        Example("one of four tensors of each step stays", _keeps_one, fires=True),
        Example("every step frees what it allocates", _frees_all, fires=False),
    ),
)
