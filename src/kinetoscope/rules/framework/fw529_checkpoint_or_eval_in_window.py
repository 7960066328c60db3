"""Checkpoints are written so often that training waits for them.

## What it finds
`torch.save` or `torch.distributed.checkpoint` inside the recorded steps, at least twice or in each
of them, with the device idle. Without stacks: steps of several times the usual length that fetch
many tensors to the host.

## Why it matters
Writing copies every tensor to the host, one by one, each with a wait, and then pickles and writes
them while nothing trains.

## How to fix it
Write less often (a checkpoint should cost below 1 % of the time between two of them), or write in
the background: `torch.distributed.checkpoint.async_save` copies to the host and returns; the file
is written by another thread. Skip the optimizer's state where only the weights are needed.

## Limits
How often the program writes when nobody profiles it is known only if the recording holds at least
two checkpoints; a single one in a short recording says what it costs, not how often.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import (
    Coverage,
    Intervals,
    empty,
    measure,
    merge,
    points_in,
    union,
)
from kinetoscope.metrics.transfers import Purpose, transfers
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Gain
from kinetoscope.result.finding import NO_GAIN
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.spread import spread
from kinetoscope.trace.frames import is_checkpoint_frame
from kinetoscope.trace.kinds import RUNTIME_KINDS, Kind
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


_MOSTLY = 0.7
"""A function that spends at least this part of its time on writing exists for that."""


class Thresholds(Options, frozen=True):
    """When checkpoints are worth a word."""

    min_share: float = 0.02
    """Time in checkpoints as a share of the recorded steps."""
    long_step: float = 3.0
    """Without stacks, a step with a checkpoint is so many times longer than the usual one."""
    min_fetched: int = 8
    """Without stacks, it fetches at least so many tensors to the host."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Add up the time in checkpoints."""
    rows = analysis.in_steps(analysis.matching(is_checkpoint_frame))
    rows = rows[analysis.trace.column("kind")[rows] == Kind.PYTHON]
    spent = _writing(analysis, rows) if rows.size else _unseen(analysis, options)
    total = analysis.steps_on_host * analysis.step_ns
    share = min(measure(spent) / total, 1.0)
    if share < options.min_share:
        return
    number = int(np.unique(analysis.trace.steps.of(spent[0])).size)
    often = number >= 2 or number >= analysis.steps_on_host
    calls = _calls_inside(analysis, spent)
    fetched = _fetched(analysis, spent)
    yield Hit(
        message=_message(analysis, spent, number, share, seen=bool(rows.size)),
        evidence=(
            Evidence("checkpoints", number, "count"),
            Evidence("time_each", measure(spent) // max(number, 1), "ns"),
            Evidence("share_of_recording", round(share, 4), "ratio", "derived"),
            Evidence("fetched_each", fetched // max(number, 1), "bytes"),
        ),
        locations=analysis.locations(rows if rows.size else calls, calls=("save", "async_save")),
        fix=Fix(
            summary="Write checkpoints less often, or in the background.",
            snippet="import torch.distributed.checkpoint as dcp\n"
            'future = dcp.async_save(state_dict, checkpoint_id=f"step{step}")  # and '
            "future.result() before the next one",
            reference="https://docs.pytorch.org/tutorials/recipes/"
            "distributed_async_checkpoint_recipe.html",
        ),
        gain=_gain(analysis, spent, calls) if often else NO_GAIN,
        confidence=0.9 if rows.size else 0.4,
        claims=spent,
        keep=not often,
        at_most="critical" if often else "info",
    )


def _writing(analysis: Analysis, rows: IntArray) -> Intervals:
    """The frames that write, widened to the program's function around them if that is all it does:
    collecting the state belongs to the checkpoint."""
    tree = analysis.trace.tree
    node = tree.node_of[rows]
    user = tree.user_frame[node]
    user = user[user >= 0]
    around = tree.rows[np.unique(user)]
    written = Coverage(analysis.extent(rows))
    ts, dur = (analysis.trace.column(c)[around] for c in ("ts_ns", "dur_ns"))
    only = written.between(ts, ts + dur) >= _MOSTLY * dur
    return merge(analysis.extent(rows), analysis.extent(around[only]))


def _gain(analysis: Analysis, spent: Intervals, calls: IntArray) -> Gain:
    """Cautious: written in the background, fetching stays; likely: hardly ever written."""
    return spread(
        analysis.gain(
            Change(host_cut=spent, host_cut_factor=0.8),
            Change(host_cut=spent, drop_calls=calls),
        )
    )


def _message(analysis: Analysis, spent: Intervals, number: int, share: float, *, seen: bool) -> str:
    each = duration(measure(spent) // max(number, 1))
    what = "a checkpoint" if seen else "what looks like a checkpoint or an evaluation"
    if number >= 2:
        steps = round(analysis.steps_on_host / number, 1)
        when = "In every step" if steps == 1 else f"Every {count(steps)} steps"
        return (
            f"{when} the program writes {what}: {each} each, {percent(share)} of the recorded time."
        )
    return f"The recording holds {what} of {each}, {percent(share)} of the recorded time."


def _calls_inside(analysis: Analysis, spent: Intervals) -> IntArray:
    rows = analysis.rows(*RUNTIME_KINDS)
    return rows[points_in(spent, analysis.trace.column("ts_ns")[rows])]


def _fetched(analysis: Analysis, spent: Intervals) -> int:
    copies = analysis.get(transfers)
    inside = np.isin(copies.call, _calls_inside(analysis, spent))
    return int(copies.bytes[inside & copies.of(Purpose.TO_HOST)].sum())


def _unseen(analysis: Analysis, options: Thresholds) -> Intervals:
    """Without stacks: from the first fetch of a long step to the next launch after the last."""
    trace, steps = analysis.trace, analysis.trace.steps
    length = np.diff(steps.edges)
    if analysis.has("stacks") or length.size < 3:
        return empty()
    copies = analysis.get(transfers)
    fetch = copies.of(Purpose.TO_HOST) & (copies.call >= 0)
    ts = trace.column("ts_ns")
    at = ts[copies.call[fetch]]
    launches = ts[analysis.rows(Kind.LAUNCH, Kind.GRAPH_LAUNCH)]
    found = []
    usual = float(np.median(length))
    for k in np.flatnonzero(length > options.long_step * usual):
        mine = at[(at >= steps.edges[k]) & (at < steps.edges[k + 1])]
        if mine.size < options.min_fetched:
            continue
        after = int(np.searchsorted(launches, mine[-1]))
        end = launches[after] if after < launches.size else steps.edges[k + 1]
        found.append(union(mine[:1], np.array([min(end, steps.edges[k + 1])])))
    return merge(*found) if found else empty()


def _writes_often(t: TraceBuilder) -> None:
    at = 0
    for step in range(6):
        write = 30_000 if step % 3 == 2 else 0
        t.step(at, 5_000 + write)
        t.kernel("gemm", at + 30, 4_900, launch_at=at + 20)
        if write:
            t.python("torch/serialization.py(900): save", at + 4_960, write)
        at += 5_000 + write


def _never_writes(t: TraceBuilder) -> None:
    for step in range(6):
        t.step(step * 5_000, 5_000)
        t.kernel("gemm", step * 5_000 + 30, 4_900, launch_at=step * 5_000 + 20)


RULE = Rule(
    code="FW529",
    name="checkpoint-or-eval-in-window",
    class_="framework",
    summary="Training waits for checkpoints that are written too often.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"steps"}),
    evidence="T",
    references=(
        "https://docs.pytorch.org/tutorials/recipes/distributed_async_checkpoint_recipe.html",
    ),
    examples=(
        Example("30 ms of torch.save every third step of 5 ms", _writes_often, fires=True),
        Example("steady steps", _never_writes, fires=False),
    ),
)
