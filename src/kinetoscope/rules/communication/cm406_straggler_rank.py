"""One rank arrives late at the collectives, and all others wait for it.

## What it finds
With the recordings of several ranks: a rank that is the last to arrive at most collectives and
causes most of the waiting, together with the work that it does longer than the others.

## Why it matters
Synchronous training runs at the pace of its slowest rank. On the other ranks the lost time looks
like slow communication; the rank at fault shows none of it.

## How to fix it
Fix what the slow rank does longer: its input (uneven shards, slow storage), extra work on one
rank (logging, evaluation), more tokens in its batches, garbage collection, a device with lower
clocks.

## Limits
With several process groups a rank that is late because it waits itself, in another group, is
not blamed: the one at the end of the chain is. When not all ranks were given, one that is missing
may be later still; the message says so. Two hosts never run equally fast, and profiling enlarges
the difference: a host that is slower by less than 1.5 throughout, with no function that stands
out, is not reported. Stages of a pipeline differ by design.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.analysis.job import blamed, trusted, waits
from kinetoscope.metrics.intervals import empty, measure, merge
from kinetoscope.replay import Change, simulate
from kinetoscope.result import Evidence, Fix, Gain, Location
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.communication._calls import intrinsic_ns
from kinetoscope.rules.communication._skew import Excess, excess, outer_frames
from kinetoscope.units import duration, times

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """What makes a straggler."""

    min_last: float = 0.6
    """Part of its collectives at which the rank must be last; less is noise or imbalance."""
    min_blame: float = 0.75
    """Part of all waiting that the rank must cause."""
    min_share: float = 0.02
    """Waiting that it causes, and its excess of work, as shares of the step."""
    min_explained: float = 0.25
    """Part of the waiting that the excess of work must explain; the rest is noise of the hosts."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find the rank that the others wait for, and what it does longer."""
    matches, ranks = analysis.matches, analysis.ranks
    if not trusted(analysis):
        return
    caused = blamed(analysis).caused
    worst = int(caused.argmax())
    slow, others = ranks[worst], [a for a in ranks if a is not ranks[worst]]
    last = float((matches.last[matches.present[worst]] == worst).mean())
    late = _held_up(others, worst) or matches.caused(worst) / _recorded_steps(analysis)
    if last < options.min_last or caused[worst] < options.min_blame * max(int(caused.sum()), 1):
        return
    least = int(max(options.min_share * slow.step_ns, options.min_explained * late))
    # What is shorter than the error of the common clock says nothing about who was late.
    worth = max(options.min_share * slow.step_ns, matches.residual_ns)
    more = excess(slow, others, least) if late >= worth else None
    if more is None:
        return
    yield Hit(
        message=_message(slow, more, int(late)) + _missing(analysis),
        evidence=(
            Evidence("slow_rank", slow.rank, "count"),
            Evidence("last_to_arrive", round(last, 4), "ratio"),
            Evidence("waiting_caused", int(late), "ns"),
            Evidence("excess_work", more.ns, "ns", "derived"),
        ),
        locations=_places(slow, more),
        fix=_fix(slow, more),
        gain=_gain(slow, more),
        confidence=0.4 if _missing(analysis) else 0.9 if more.ratio > 1.2 else 0.7,
        claims=merge(*(part for _, part in waits(analysis).waiting)) or empty(),
    )


def _places(slow: Analysis, more: Excess) -> tuple[Location, ...]:
    """Where the excess comes from; when all work is longer, first the function that asks for it."""
    if not more.rows.size:
        return ()
    inner = slow.locations(more.rows)
    if not more.uniform:
        return inner
    frames = outer_frames(slow, more.rows)
    known = frames >= 0
    tree = slow.trace.tree
    weights = slow.trace.column("dur_ns")[more.rows[known]]
    return (*slow.locations(tree.rows[frames[known]], weights, top=1), *inner[:2])


def _held_up(others: Sequence[Analysis], late: int) -> float:
    """Time per step in which the devices of the other ranks do nothing but wait for this one."""
    each = [
        sum(measure(part) for place, part in waits(a).waiting if place == late) / a.steps
        for a in others
        if a.device is not None
    ]
    return float(np.median(each)) if each else 0.0


def _recorded_steps(analysis: Analysis) -> float:
    """Steps that the matched collectives span; windows of different ranks differ."""
    matches = analysis.matches
    span = int(matches.end.max(axis=0)[-1] - matches.end.max(axis=0)[0])
    return max(span / max(analysis.step_ns, 1), 1.0)


def _gain(slow: Analysis, more: Excess) -> Gain:
    """Replay the ranks together, the slow one without its excess."""
    change = _without(slow, more)
    gain = slow.what_if.gain_of({slow.place: (change, change, change)})
    if slow.device is None or more.segment == "kernels":
        return gain
    # How much of the excess is profiling is unknown; code that watches the clock has none.
    alone = replace(change, durations=(slow.comm.row, intrinsic_ns(slow)))
    rest = max(simulate(slow.model, alone, deflate=slow.deflations[2]).step_ns, 1.0)
    high = max(gain.high, 1.0 + more.most_ns / rest)
    mid = max(gain.mid, float(np.sqrt(gain.low * high)))
    return msgspec.structs.replace(gain, mid=round(mid, 3), high=round(high, 3))


def _without(slow: Analysis, more: Excess) -> Change:
    """The slow rank without its excess."""
    if more.segment == "kernels":
        kept = (slow.trace.column("dur_ns")[more.rows] * (1.0 - more.part)).astype(np.int64)
        return Change(durations=(more.rows, kept))
    return Change(host_cut=slow.extent(more.rows), host_cut_factor=more.part)


_WORK = {
    "kernels": "Its kernels take",
    "loader": "Its DataLoader takes",
    "gc": "Its garbage collection takes",
    "host": "Its host code takes",
}


def _message(slow: Analysis, more: Excess, late: int) -> str:
    much = f"{times(more.ratio)} as long as" if more.ratio < 100 else "longer than"
    where = f", most of it in {_short(more.name)}" if more.name else ""
    return (
        f"Rank {slow.rank} arrives last at the collectives; the others wait {duration(late)} for "
        f"it in each step. {_WORK[more.segment]} {much} on the other ranks "
        f"(+{duration(more.ns)}){where}."
    )


def _missing(analysis: Analysis) -> str:
    """A word about ranks that were not given: one of them may come later still."""
    world, given = analysis.trace.header.world_size or 0, len(analysis.ranks)
    if world <= given:
        return ""
    return f" {given} of {world} ranks were given: one that is missing may come later still."


def _short(name: str) -> str:
    """`dir/file.py(12): decode` -> `decode`."""
    return name.rpartition(": ")[2] if name.endswith(name.rpartition(": ")[2]) else name


def _fix(slow: Analysis, more: Excess) -> Fix:
    name = _short(more.name) if more.name else ""
    advice = {
        "kernels": (
            f"Give rank {slow.rank} as much work as the others (batch size, sequence lengths, "
            "extra forward passes); when the work is equal, compare clocks and temperature of "
            "its device."
        ),
        "loader": f"Speed up the input of rank {slow.rank}: equal shards, equal storage, workers.",
        "gc": "Collect garbage on all ranks at the same step: gc.disable(), gc.collect() every n.",
        "host": (
            f"Move {name or 'the extra work'} off rank {slow.rank}, or share it among the ranks."
        ),
    }
    return Fix(
        summary=advice[more.segment],
        snippet="",
        reference="https://docs.pytorch.org/docs/stable/data.html"
        if more.segment == "loader"
        else "https://docs.pytorch.org/docs/stable/notes/ddp.html",
    )


def _rank(t: TraceBuilder, kernel_us: int) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.kernel("gemm", at + 100, kernel_us, launch_at=at + 50, op="aten::mm")
        t.all_reduce(at + 105 + kernel_us, 9_595 - kernel_us, launch_at=at + 70)
        t.sync(at + 120, 9_600)


def _quick(t: TraceBuilder) -> None:
    _rank(t, 5_000)


def _slow(t: TraceBuilder) -> None:
    _rank(t, 9_000)


RULE = Rule(
    code="CM406",
    name="straggler-rank",
    class_="communication",
    summary="One rank arrives late at the collectives and all others wait for it.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ranks"}),
    evidence="TE",
    references=("https://docs.pytorch.org/docs/stable/notes/ddp.html",),
    examples=(
        Example("rank 1 computes 9 ms, rank 0 5 ms", _quick, True, peers=(_slow,)),
        Example("both ranks compute 5 ms", _quick, False, peers=(_quick,)),
    ),
)
