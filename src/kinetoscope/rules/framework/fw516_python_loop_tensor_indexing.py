"""A Python loop handles a tensor row by row.

## What it finds
The same short sequence of operators, ten times or more in a row, that takes another part of a
tensor each time (`x[i]`, `x[:, t]`, `for row in x`), or that calls a recurrent cell for each
time step. Layers of a network do not count: they are different modules.

## Why it matters
Every operator costs the host five to twenty microseconds, whether it handles one row or a
million. The device works on each row for a microsecond or two and waits for the rest.

## How to fix it
Work on the whole tensor: `x @ w` instead of a product for each row, `index_put_`, slicing,
`cumsum`, `torch.vmap(f)(x)`. For recurrent cells use `nn.LSTM`, `nn.GRU` or `nn.RNN`, which run
all time steps in one call. What cannot be written that way gains from `torch.compile`, or from a
CUDA graph of the whole loop.

## Limits
Iterations that depend on each other (own recurrences, simulations) cannot become one call; only
compilation helps them, and by less than predicted here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.loops import Body, Loop, describe, find_loops
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules._collapse import (
    collapse_gain,
    host_share,
    host_time,
    loop_places,
    per_step,
)
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.trace.trace import Trace
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_MODEL_PRODUCTS = 2
"""From this many products on, an iteration is a call of a model."""


class Thresholds(Options, frozen=True):
    """When a loop is worth a word."""

    min_repeats: int = 8
    """Iterations; torch's own pattern matcher asked for ten (ForLoopIndexing)."""
    min_share: float = 0.05
    """Host time in the loop as a share of the step."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Group the loops over parts of tensors by place and replay each as one call."""
    for loops, body in _groups(analysis, options):
        share = host_share(analysis, loops)
        if share >= options.min_share:
            yield _hit(analysis, loops, body, share)


def _groups(analysis: Analysis, options: Thresholds) -> list[tuple[list[Loop], Body]]:
    """Loops that qualify, by the function that they are in and what they do."""
    trace = analysis.trace
    name_id = trace.column("name_id")
    looked: dict[tuple[int, ...], Body | None] = {}
    found: dict[tuple[int, tuple[str, ...]], tuple[list[Loop], Body]] = {}
    for loop in analysis.get(find_loops):
        if loop.repeats < options.min_repeats:
            continue
        # The same loop comes back in every step: look into it once.
        key = (*name_id[trace.tree.rows[loop.nodes[: loop.body]]].tolist(), loop.repeats)
        if key not in looked:
            body = describe(trace, loop)
            looked[key] = body if _qualifies(trace, loop, body) else None
        known = looked[key]
        if known is None:
            continue
        frame = trace.tree.user_frame[loop.nodes[0]]
        place = int(name_id[trace.tree.rows[frame]]) if frame >= 0 else -1
        # A loop may be seen to begin in the middle of its body.
        found.setdefault((place, tuple(sorted(known.names))), ([], known))[0].append(loop)
    return list(found.values())


def _qualifies(trace: Trace, loop: Loop, body: Body) -> bool:
    # A rollout, or tokens sent to experts (FW503, FW504); tokens that follow from the one before.
    if (body.decides and body.products) or body.generates:
        return False
    if body.cell:
        return True
    if not body.slices or len(body.names) == 1:
        return False
    if body.products and not body.matrix:  # a scalar of a schedule, in front of a whole model
        return False
    trained = _has_backward(trace, loop)
    if body.products >= _MODEL_PRODUCTS and body.batch_one and not _trains(trace):
        return False  # one request after the other: IN603
    return not trained


def _has_backward(trace: Trace, loop: Loop) -> bool:
    """Is there a backward pass inside the loop? Then it accumulates gradients on purpose."""
    tree = trace.tree
    roots = trace.links.backward_root
    starts = tree.start[roots[roots >= 0]]
    return bool(((starts >= loop.starts[0]) & (starts < loop.end)).any())


def _trains(trace: Trace) -> bool:
    return bool((trace.links.backward_root >= 0).any())


def _hit(analysis: Analysis, loops: list[Loop], body: Body, share: float) -> Hit:
    repeats = max(loop.repeats for loop in loops)
    spent = per_step(analysis, loops)
    what = "a recurrent cell step by step" if body.cell else "a tensor part by part"
    repeated = sum(loop.repeats for loop in loops)
    one = sum(loop.end - int(loop.starts[0]) for loop in loops) // repeated
    shown = ", ".join(dict.fromkeys(body.names))
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    times = _times_a_step(analysis, loops)
    often = f", {count(times)} times a step" if times > 1 else ""
    return Hit(
        message=(
            f"A Python loop handles {what}: {count(repeats)} iterations of {shown}{often}, "
            f"{duration(one)} each on the host, {duration(spent)} a step "
            f"({percent(min(share, 1.0))})."
        ),
        evidence=(
            Evidence("iterations", repeats, "count"),
            Evidence("loops_per_step", times, "count"),
            Evidence("loop_time", spent, "ns"),
            Evidence("iteration_time", int(one), "ns"),
            Evidence("operators_per_iteration", len(body.names), "count"),
        ),
        locations=loop_places(analysis, loops, calls=body.names),
        fix=_fix(body),
        gain=collapse_gain(analysis, loops, cell=body.cell),
        confidence=0.9 if body.slices else 0.7,
        claims=host_time(loops),
    )


def _times_a_step(analysis: Analysis, loops: list[Loop]) -> int:
    low, high = analysis.times.host_window
    inside = sum(low <= int(loop.starts[0]) < high for loop in loops)
    return max(round(inside / analysis.steps_on_host), 1)


def _fix(body: Body) -> Fix:
    if body.cell:
        return Fix(
            summary="Run all time steps in one call of the library's recurrent network.",
            snippet="out, state = nn.LSTM(input_size, hidden_size, batch_first=True)(x)",
            reference="https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html",
        )
    return Fix(
        summary="Do the work of all iterations in one call on the whole tensor.",
        snippet="out = torch.vmap(f)(x)  # or write f for the whole x",
        reference="https://docs.pytorch.org/docs/stable/generated/torch.vmap.html",
    )


def _rows(t: TraceBuilder, repeats: int, modules: bool) -> None:
    for step in range(4):
        at = step * 5_000
        t.step(at, 5_000)
        t.python("train.py(10): step", at + 1, 4_990)
        for i in range(repeats):
            begin = at + 10 + 40 * i
            if modules:
                t.module(f"Linear_{i}", begin, 38)
            else:
                t.op("aten::select", begin, 5, dims=[[512, 64], [], []], concrete=["", "0", str(i)])
            t.op("aten::matmul", begin + 10, 20, dims=[[64], [64, 64]])
            t.kernel("gemv", begin + 20, 3, launch_at=begin + 14)


def _loop(t: TraceBuilder) -> None:
    _rows(t, 100, modules=False)


def _layers(t: TraceBuilder) -> None:
    _rows(t, 100, modules=True)


RULE = Rule(
    code="FW516",
    name="python-loop-tensor-indexing",
    class_="framework",
    summary="A Python loop handles a tensor row by row, or calls a recurrent cell step by step.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops"}),
    evidence="TE",
    references=(
        "https://docs.pytorch.org/docs/stable/generated/torch.vmap.html",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    ),
    examples=(
        Example("a product for each of 100 rows", _loop, fires=True),
        Example("100 layers with one product each", _layers, fires=False),
    ),
)
