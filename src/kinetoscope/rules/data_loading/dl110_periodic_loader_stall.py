"""The loader is quick for most batches and very slow for some, at regular distances.

## What it finds
At least twenty waits for the loader, a few of which take more than five times the median, again and
again, and cost a visible part of the whole time.

## Why it matters
The mean hides it. A distance equal to the number of workers, or of prefetched batches, shows that
one worker is slow or that all of them reach a border of their data together (a shard, a file).

## How to fix it
Balance the shards, shuffle within a buffer, prefetch more, cache. `in_order=False` (2.6 and later)
lets quick workers go first when the order does not matter.

## Limits
A preview. Long recordings only; garbage collection and checkpoints stall the loop as well and are
reported as such.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.budget import main_thread
from kinetoscope.metrics.intervals import union
from kinetoscope.result import Evidence, Fix, Gain
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.trace.kinds import Kind
from kinetoscope.units import count, duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """What is a stall."""

    min_batches: int = 20
    """Recorded batches."""
    min_ratio: float = 5.0
    """A stalled wait over the median."""
    min_stall_ns: int = 1_000_000
    """And its length."""
    min_stalls: int = 2
    """Stalls; one alone has no period."""
    min_share: float = 0.05
    """What they take beyond the median, as a share of the recorded time."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Compare the waits for the loader with each other."""
    trace = analysis.trace
    rows = analysis.in_steps(analysis.rows(Kind.LOADER))
    rows = rows[trace.column("thread")[rows] == main_thread(trace)]
    if rows.size < options.min_batches:
        return
    ts, dur = trace.column("ts_ns")[rows], trace.column("dur_ns")[rows]
    usual = int(np.median(dur))
    stalled = np.flatnonzero(dur >= max(options.min_ratio * usual, options.min_stall_ns))
    low, high = analysis.times.host_window
    excess = int((dur[stalled] - usual).sum())
    share = excess / max(high - low, 1)
    rare = stalled.size <= rows.size // 2
    if stalled.size < options.min_stalls or share < options.min_share or not rare:
        return
    period = np.diff(stalled)
    regular = period.size > 0 and int(period.max() - period.min()) <= 1
    every = f", every {count(round(float(period.mean())))} batches" if regular else ""
    yield Hit(
        message=(
            f"{count(int(stalled.size))} of {count(int(rows.size))} batches take "
            f"{duration(int(np.median(dur[stalled])))} to arrive{every}, the others "
            f"{duration(usual)}."
        ),
        evidence=(
            Evidence("stalls", int(stalled.size), "count"),
            Evidence("stall_time", int(np.median(dur[stalled])), "ns"),
            Evidence("usual_time", usual, "ns"),
            Evidence("stall_share", round(min(share, 1.0), 4), "ratio", "derived"),
        ),
        locations=analysis.locations(rows[stalled]),
        fix=Fix(
            summary="Balance what the workers read, and let batches wait in a longer queue.",
            snippet="DataLoader(..., num_workers=8, prefetch_factor=8, in_order=False)",
            reference="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",
        ),
        gain=_gain(share),
        confidence=0.7 if regular else 0.4,
        claims=union(ts[stalled], (ts + dur)[stalled]),
    )


def _gain(share: float) -> Gain:
    """Of the mean over all steps: the stalls gone, half of them gone, none of them exposed."""
    best = 1 / max(1 - share, 0.05)
    return Gain(1.0, round(1 / (1 - share / 2), 3), round(best, 3), basis="bound")


def _epoch(t: TraceBuilder, stall_us: float) -> None:
    at = 0.0
    for step in range(32):
        wait = stall_us if step % 8 == 7 else 100.0
        t.step(at, wait + 1_000)
        t.loader(at + 5, wait, workers=True)
        t.kernel("gemm", at + wait + 30, 950, launch_at=at + wait + 20)
        at += wait + 1_000


def _stalls(t: TraceBuilder) -> None:
    _epoch(t, 20_000)


def _even(t: TraceBuilder) -> None:
    _epoch(t, 150)


RULE = Rule(
    code="DL110",
    name="periodic-loader-stall",
    class_="data_loading",
    summary="Some batches take many times as long to arrive as the others.",
    check=check,
    options=Thresholds(),
    evidence="L",
    references=("https://docs.pytorch.org/docs/stable/data.html",),
    examples=(
        Example("every eighth batch takes 20 ms", _stalls, fires=True),
        Example("every eighth batch takes 0.15 ms", _even, fires=False),
    ),
    preview=True,
)
