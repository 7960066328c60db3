"""The host reads each token from the device before it launches the next step.

## What it finds
Inference that embeds a token in every step, picks the next one (`argmax`, `multinomial`, `topk`)
and reads a value right after it.

## Why it matters
The read waits for the device, and then the device waits for the host to launch the next token. For
small models the second wait is the longer one.

## How to fix it
Keep tokens on the device and feed them back; look for the end of the text every few tokens, or one
step late, while the next token is already computed.

## Limits
A preview. A stream of tokens to a user has to be read some time; it can be read one step late.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import measure
from kinetoscope.metrics.waits import Wait, Waits
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._waiting import avoidable, blocked_per_step
from kinetoscope.rules.inference._requests import ops_named, serves
from kinetoscope.units import duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When a read belongs to sampling."""

    most_operators: int = 12
    """Operators between picking the token and the read."""
    min_per_step: float = 0.9
    """Such reads in a step."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find reads that follow the choice of a token, and replay without waiting."""
    tokens = analysis.in_steps(ops_named(analysis.trace, "embedding"))
    if not serves(analysis) or tokens.size < options.min_per_step * analysis.steps_on_host:
        return
    waits = _after_sampling(analysis, options)
    ops = np.unique(waits.op)
    if ops.size < options.min_per_step * analysis.steps_on_host or ops.size == 0:
        return
    reading = analysis.extent(ops)
    blocked = blocked_per_step(analysis, waits)
    yield Hit(
        message=(
            f"Each token is read from the device before the next one is launched; the host waits "
            f"{duration(blocked)} a step for it."
        ),
        evidence=(
            Evidence("reads_per_step", round(ops.size / analysis.steps_on_host, 1), "count"),
            Evidence("blocked_time", blocked, "ns"),
            Evidence("read_time", measure(reading) // analysis.steps_on_host, "ns"),
        ),
        locations=analysis.locations(ops, calls=("item", "tolist", "cpu", "any", "all")),
        fix=Fix(
            summary="Feed the token back on the device and look for the end every few tokens.",
            snippet="tokens[:, at] = logits[:, -1].argmax(-1)   # stays on the device\n"
            "if at % 8 == 0 and (tokens == eos).any(1).all():\n    break",
            reference="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
            "#avoid-unnecessary-cpu-gpu-synchronization",
        ),
        gain=analysis.gain(
            Change(unblock=waits.calls),
            Change(unblock=waits.calls, drop_calls=waits.calls, host_cut=reading),
        ),
        confidence=0.7,
        claims=reading,
    )


def _after_sampling(analysis: Analysis, options: Thresholds) -> Waits:
    """Reads with a sampling operator shortly before them among the operators of Python."""
    trace, tree = analysis.trace, analysis.trace.tree
    waits = avoidable(analysis, Wait.SCALAR, Wait.SHAPE, Wait.COPY)
    if waits.call.size == 0:
        return waits
    order = np.sort(tree.rows[trace.tree.outer_ops])
    picks = np.intersect1d(ops_named(trace, "argmax", "multinomial", "topk"), order)
    read = np.searchsorted(order, waits.op)
    pick = np.searchsorted(order, picks)
    at = np.searchsorted(pick, read, side="right") - 1
    near = (
        (at >= 0) & (read - pick[np.maximum(at, 0)] <= options.most_operators)
        if (picks.size)
        else np.zeros(read.size, dtype=bool)
    )
    return waits.where(near)


def _decoding(t: TraceBuilder, *, reads: bool) -> None:
    for step in range(5):
        at = step * 2_000.0
        t.step(at, 2_000)
        t.op("aten::embedding", at + 3, 5)
        t.op("aten::argmax", at + 10, 20)
        t.kernel("reduce", at + 30, 10, launch_at=at + 15)
        if reads:
            t.op("aten::item", at + 40, 900)
            t.op("aten::_local_scalar_dense", at + 41, 898)
            t.copy("DtoH Pinned", 8, at + 900, 2, launch_at=at + 50)
            t.sync(at + 60, 860)
        t.kernel("gemm", at + 1_100, 890, launch_at=at + (1_000 if reads else 50))


def _reads(t: TraceBuilder) -> None:
    _decoding(t, reads=True)


def _stays(t: TraceBuilder) -> None:
    _decoding(t, reads=False)


RULE = Rule(
    code="IN614",
    name="per-token-sampling-sync",
    class_="framework",
    summary="The host reads each token before it launches the next step.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "ops"}),
    evidence="L",
    references=("https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",),
    examples=(
        Example("a token that is read before the next step", _reads, fires=True),
        Example("tokens that stay on the device", _stays, fires=False),
    ),
    preview=True,
)
