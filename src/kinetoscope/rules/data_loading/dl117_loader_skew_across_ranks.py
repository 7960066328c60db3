"""One rank waits longer for its input than the others, and all of them wait for that rank.

## What it finds
With the recordings of several ranks: a rank whose DataLoader takes clearly longer than the median,
and which is the last to arrive at most collectives.

## Why it matters
Synchronous training runs at the pace of the rank whose batch comes last. On the other ranks the
lost time is waiting in the collective, which looks like slow communication; their loaders are fine.

## How to fix it
Give each rank the same amount of input: shards of equal bytes or tokens, not of equal numbers of
files. Look at the storage and the cores of the slow rank's host, and give it more workers.

## Limits
Ranks of hosts with different storage differ by design. Which files a rank reads is not recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.analysis.job import trusted, waits
from kinetoscope.metrics.budget import main_thread
from kinetoscope.metrics.intervals import Intervals, clip, empty, measure, merge
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Gain, Location
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.data_loading._input import loader_work
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When input makes a straggler."""

    min_share: float = 0.05
    """Loading beyond the median of the ranks, as a share of the step."""
    min_last: float = 0.5
    """Part of the collectives at which the rank is last."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Compare the ranks' loaders, and look who is last."""
    if not trusted(analysis):
        return
    ranks, matches = analysis.ranks, analysis.matches
    loading = [_loading(rank) for rank in ranks]
    each = np.array(
        [measure(part) / r.steps_on_host for part, r in zip(loading, ranks, strict=True)]
    )
    worst = int(each.argmax())
    slow = ranks[worst]
    usual = float(np.median(np.delete(each, worst)))
    excess = each[worst] - usual
    share = excess / max(slow.step_ns, 1)
    last = float((matches.last == worst).mean()) if matches.last.size else 0.0
    if share < options.min_share or last < options.min_last:
        return
    part = excess / each[worst]
    yield Hit(
        message=(
            f"The DataLoader of rank {slow.rank} takes {duration(int(each[worst]))} of each step, "
            f"on the other ranks {duration(int(usual))}; rank {slow.rank} is last at "
            f"{percent(last)} of the collectives, and the others wait for it there."
        ),
        evidence=(
            Evidence("slow_rank", slow.rank, "count"),
            Evidence("loader_time", int(each[worst]), "ns"),
            Evidence("usual_loader_time", int(usual), "ns"),
            Evidence("last_to_arrive", round(last, 4), "ratio"),
        ),
        locations=_places(slow),
        fix=Fix(
            summary=f"Balance the input of rank {slow.rank} with the others: shards of equal size, "
            "equal storage, more workers there.",
            snippet="DataLoader(..., sampler=DistributedSampler(dataset), num_workers=8)",
            reference="https://docs.pytorch.org/docs/stable/data.html"
            "#torch.utils.data.distributed.DistributedSampler",
        ),
        gain=_gain(slow, loading[worst], part),
        confidence=0.9,
        claims=merge(*(span for _, span in waits(analysis).waiting), _own(analysis, loading))
        or empty(),
    )


def _own(analysis: Analysis, loading: Sequence[Intervals]) -> Intervals:
    return loading[analysis.place]


def _gain(slow: Analysis, loading: Intervals, part: float) -> Gain:
    """Replay the ranks together, the slow one without its excess; cautiously, with a fifth."""
    low = Change(host_cut=loading, host_cut_factor=0.8 * part)
    full = Change(host_cut=loading, host_cut_factor=part)
    return slow.what_if.gain_of({slow.place: (low, full, full)})


def _loader_rows(analysis: Analysis) -> IntArray:
    rows = analysis.in_steps(analysis.rows(Kind.LOADER))
    main = analysis.trace.column("thread")[rows] == main_thread(analysis.trace)
    return np.asarray(rows[main], dtype=np.int64)


def _loading(analysis: Analysis) -> Intervals:
    """Host time of a rank in its loader, in the steady steps."""
    return clip(analysis.extent(_loader_rows(analysis)), *analysis.times.host_window)


def _places(slow: Analysis) -> tuple[Location, ...]:
    rows = _loader_rows(slow)
    inside, start, end = loader_work(slow, rows)
    return slow.locations(inside, end - start) or slow.locations(rows)


def _rank(t: TraceBuilder, loader_us: int) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.loader(at + 5, loader_us)
        begin = at + loader_us + 20
        t.kernel("gemm", begin + 10, 2_000, launch_at=begin, op="aten::mm")
        t.all_reduce(begin + 2_015, 7_900 - loader_us, launch_at=begin + 30)
        t.sync(begin + 60, 9_860 - loader_us)


def _quick(t: TraceBuilder) -> None:
    _rank(t, 500)


def _slow(t: TraceBuilder) -> None:
    _rank(t, 6_500)


RULE = Rule(
    code="DL117",
    name="loader-skew-across-ranks",
    class_="data_loading",
    summary="One rank waits longer for its input, and all others wait for that rank.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ranks"}),
    evidence="E",
    references=("https://docs.pytorch.org/docs/stable/data.html",),
    examples=(
        Example("rank 1 loads for 6.5 ms, rank 0 for 0.5 ms", _quick, True, peers=(_slow,)),
        Example("both ranks load for 0.5 ms", _quick, False, peers=(_quick,)),
    ),
)
