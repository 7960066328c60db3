"""Every operator goes through Python, because of a dispatch mode or a tensor subclass.

## What it finds
Handlers of `__torch_dispatch__` or `__torch_function__` (or torch's own marks of them) whose Python
takes a sizeable part of the step, profiling overhead taken off. The operators inside them do not
count.

## Why it matters
An operator on a plain tensor takes the host a few microseconds. With a mode or a subclass it goes
through Python first: 20 to 100 µs each, in the forward pass, the backward pass and the optimizer.

## How to fix it
Switch modes off that only watch (FLOP counters, logging, debugging). Take a subclass off before the
inner loop: `DTensor.to_local()`, `tensor.as_subclass(torch.Tensor)`. `torch.compile` traces
subclasses away.

## Limits
Compiling uses modes of its own; that time belongs to the compiler. Without stacks only torch's
marks are seen (2.7 and later).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._surroundings import (
    net_ns,
    outermost,
    python_only,
    within,
)
from kinetoscope.trace.frames import parse_frame
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.torch_frames import is_dispatch_mode
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent, several

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When handlers are worth a word."""

    min_share: float = 0.05
    """Their own time as a share of the likely step."""
    cautious: float = 0.5
    """Part of it that goes away at the cautious end."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Add up the Python around operators, and replay the steps without it."""
    trace, tree = analysis.trace, analysis.trace.tree
    flag = trace.tree.named(is_dispatch_mode) & ~within(trace, tree.kind == Kind.COMPILE)
    if not flag.any():
        return
    own = python_only(analysis, flag)
    spent = net_ns(analysis, own)
    share = spent / max(analysis.step_time.mid, 1)
    if share < options.min_share:
        return
    steps = analysis.steps_on_host
    rows = analysis.in_steps(tree.rows[outermost(trace, flag)])
    owner = _owner(analysis, flag)
    yield Hit(
        message=(
            f"{several(rows.size / steps, 'operator goes', 'operators go')} through "
            "Python first in each step"
            + (f" (`{owner}`)" if owner else "")
            + f": {duration(spent)} of each step, {percent(share)} of it."
        ),
        evidence=(
            Evidence("handler_time", spent, "ns", "estimated"),
            Evidence("handler_recorded", measure(own) // steps, "ns"),
            Evidence("operators", round(rows.size / steps, 1), "count"),
        ),
        locations=analysis.locations(np.concatenate((_handlers(analysis, flag), rows))),
        fix=Fix(
            summary="Switch the mode off, or take the subclass off before the inner loop; "
            "torch.compile traces both away.",
            snippet="x = x.to_local()                  # DTensor\n"
            "x = x.as_subclass(torch.Tensor)   # any other subclass",
            reference="https://docs.pytorch.org/docs/stable/notes/extending.html",
        ),
        gain=analysis.gain(
            Change(host_cut=own, host_cut_factor=options.cautious),
            Change(host_cut=own, host_cut_factor=0.85),
            Change(host_cut=own),
        ),
        confidence=0.7,
        claims=own,
        at_most="medium",
    )


def _handlers(analysis: Analysis, flag: np.ndarray) -> IntArray:
    """Handlers that are frames: they name the file of the mode or subclass."""
    tree = analysis.trace.tree
    return analysis.in_steps(tree.rows[flag & (tree.kind == Kind.PYTHON)])


def _owner(analysis: Analysis, flag: np.ndarray) -> str:
    """File of the handler that ran most often; "" when no frame was recorded."""
    rows = _handlers(analysis, flag)
    if rows.size == 0:
        return ""
    name = np.bincount(analysis.trace.column("name_id")[rows]).argmax()
    frame = parse_frame(analysis.trace.names[int(name)])
    return f"{frame.function} in {frame.file}" if frame else ""


def _operators(t: TraceBuilder, *, mode: bool) -> None:
    for step in range(4):
        at = step * 2_000.0
        t.step(at, 2_000)
        t.python("train.py(10): step", at + 2, 1_990)
        for i in range(30):
            begin = at + 10 + i * 65
            t.op("aten::add", begin, 60)
            if mode:
                t.op("PythonDispatchMode", begin + 2, 55)
                t.python("count.py(40): __torch_dispatch__", begin + 5, 50)
                t.op("aten::add", begin + 30, 10)
            t.kernel("add", begin + 38, 3, launch_at=begin + 32)


def _with_a_mode(t: TraceBuilder) -> None:
    _operators(t, mode=True)


def _plain(t: TraceBuilder) -> None:
    _operators(t, mode=False)


RULE = Rule(
    code="FW531",
    name="dispatch-mode-or-subclass-overhead",
    class_="framework",
    summary="A dispatch mode or a tensor subclass sends every operator through Python.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops"}),
    evidence="TS",
    references=("https://docs.pytorch.org/docs/stable/notes/extending.html",),
    examples=(
        Example("thirty operators that a mode counts", _with_a_mode, fires=True),
        Example("the same operators on plain tensors", _plain, fires=False),
    ),
)
