"""One function floods the device with tiny kernels, and the host cannot issue them fast enough.

## What it finds
A step of more than a thousand launches in which the host is too slow for the device, most kernels
take less than 10 µs, and most of these come from one function.

## Why it matters
A kernel of a few microseconds costs the host more to launch than the device to run. When one
function makes most of them, it is the one to rewrite: its work is done in pieces that are too
small.

## How to fix it
Let the function work on whole tensors: batched products (`torch.bmm`), `torch.vmap`, the
`torch._foreach_*` operators. Or compile it: `torch.compile` fuses its operators, and with
`mode="reduce-overhead"` launches them as one graph. Where the function runs again and again on
parts of a batch (gradient accumulation), larger parts make fewer, larger kernels.

## Limits
The optimizer's launches are left to FW507 and FW508, loops over parts of a tensor to FW516. A flood
that the device keeps up with is not reported: shorter kernels would gain little there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import device_ops
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._launching import (
    LaunchBound,
    compiled_share,
    evidence,
    graph_gain,
    larger_parts,
    launch_bound,
    most_severe,
    with_caller,
    worth_a_word,
)
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When launches are a flood."""

    min_launches: int = 1000
    """Device events a step outside the optimizer."""
    tiny_ns: int = 10_000
    """Kernels below this are short; the border of TraceLens."""
    min_tiny: float = 0.7
    """Part of the kernels that are short."""
    min_share: float = 0.3
    """Idle time under launching as a share of the step, as for FW501."""
    min_concentration: float = 0.5
    """Part of the short kernels that come from one function; spread over the whole model, the
    step as a whole is launch-bound and FW501 says so."""
    min_operators: float = 0.5
    """Operators over short kernels; a library's call that starts many kernels is no flood."""


@dataclass(frozen=True)
class _Flood:
    """Rows of the short kernels of the function that makes most of them, and their number a step.

    `share` is their part of all short kernels; `names` are the commonest operators.
    """

    rows: IntArray
    per_step: float
    share: float
    names: tuple[str, ...]


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """A launch-bound step whose launches come from one place."""
    bound = launch_bound(analysis, min_share=options.min_share, min_launches=options.min_launches)
    if bound is None or compiled_share(analysis, bound) >= 0.5:
        return
    flood = _flood(analysis, bound, options)
    if flood is None:
        return
    gain = graph_gain(analysis, bound)
    if not worth_a_word(gain):
        return
    dur = analysis.trace.column("dur_ns")[flood.rows]
    yield Hit(
        message=(
            f"One function launches {count(round(flood.per_step))} kernels of "
            f"{duration(int(np.median(dur)))} a step ({', '.join(flood.names)}), "
            f"{percent(flood.share)} of all short ones; the device waits for launches "
            f"{percent(bound.share)} of the step as recorded."
        ),
        evidence=(
            Evidence("short_kernels_per_step", round(flood.per_step, 1), "count"),
            Evidence("from_one_function", round(flood.share, 6), "ratio"),
            *evidence(analysis, bound),
        ),
        locations=with_caller(
            analysis, analysis.locations(flood.rows, np.ones(flood.rows.size, dtype=np.int64))
        ),
        fix=Fix(
            summary="Let that function work on whole tensors, or compile it with CUDA graphs."
            + larger_parts(analysis),
            snippet='step = torch.compile(step, mode="reduce-overhead")\n'
            "# or batch by hand: torch.bmm, torch.vmap, torch._foreach_mul_",
            reference="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
        ),
        gain=gain,
        confidence=0.7,
        claims=bound.idle,
        at_most=most_severe(analysis, bound, gain),
    )


def _flood(analysis: Analysis, bound: LaunchBound, options: Thresholds) -> _Flood | None:
    """The function that makes most of the short kernels outside the optimizer."""
    work = analysis.get(device_ops)
    mine = np.isin(work.rows, bound.events) & ~work.optimizer & (work.family > 0)
    rows, ns, op = work.rows[mine], work.ns[mine], work.op[mine]
    tiny = ns < options.tiny_ns
    if rows.size < options.min_launches * analysis.steps_on_host or not tiny.size:
        return None
    if tiny.mean() < options.min_tiny:
        return None
    frame = analysis.locator.frames(rows[tiny])
    tree, names = analysis.trace.tree, analysis.trace.column("name_id")
    place = np.where(frame >= 0, names[tree.rows[np.maximum(frame, 0)]], -1)
    places, size = np.unique(place[place >= 0], return_counts=True)
    if places.size == 0 or size.max() < options.min_concentration * tiny.sum():
        return None
    chosen = place == places[size.argmax()]
    if np.unique(op[tiny][chosen]).size < options.min_operators * chosen.sum():
        return None
    return _Flood(
        rows=rows[tiny][chosen],
        per_step=float(chosen.sum()) / analysis.steps_on_host,
        share=float(chosen.sum() / tiny.sum()),
        names=_common(analysis, op[tiny][chosen]),
    )


def _common(analysis: Analysis, ops: IntArray) -> tuple[str, ...]:
    """The three commonest operators."""
    ids = analysis.trace.column("name_id")[ops[ops >= 0]]
    found, size = np.unique(ids, return_counts=True)
    best = found[np.argsort(-size, kind="stable")[:3]]
    return tuple(dict.fromkeys(short_name(analysis.trace.names[i]) for i in best))


def _many(t: TraceBuilder, places: int) -> None:
    for step in range(3):
        at = step * 20_000.0
        t.step(at, 20_000)
        for place in range(places):
            begin, length = at + 10 + place * 19_900 / places, 19_900 / places
            t.python(f"model.py({10 * place + 10}): part_{place}", begin, length)
            for i in range(1100 // places):
                here = begin + 1 + i * 18
                t.op(("aten::add", "aten::mul")[i % 2], here, 15)
                t.kernel("elementwise_kernel", here + 12, 2, launch_at=here + 5)


def _from_one_function(t: TraceBuilder) -> None:
    _many(t, 1)


def _from_everywhere(t: TraceBuilder) -> None:
    _many(t, 10)


RULE = Rule(
    code="FW502",
    name="tiny-kernel-flood",
    class_="framework",
    summary="One function makes more than a thousand tiny kernels a step.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "ops", "stacks"}),
    references=(
        "https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    ),
    examples=(
        Example("1,100 kernels of 2 µs from one function", _from_one_function, fires=True),
        Example("as many, from ten parts of a model", _from_everywhere, fires=False),
    ),
)
