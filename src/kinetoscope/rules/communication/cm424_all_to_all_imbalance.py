"""All-to-alls carry much more for some ranks than for others.

## What it finds
With the recordings of several ranks: all-to-alls in which one rank gets at least 1.5 times the
mean of what the ranks get, where all-to-alls take at least 5 % of the step exposed.

## Why it matters
An all-to-all of a mixture of experts is over when the rank with most tokens has them all. That
rank's experts then compute longest, and the others wait again.

## How to fix it
Balance the router (an auxiliary loss or a bias per expert), place busy experts on different ranks,
or bound the tokens of an expert (capacity factor).

## Limits
The transfer of a balanced step is estimated as today's by mean over largest. What the experts' own
imbalance costs is not in this number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.analysis.job import trusted
from kinetoscope.metrics.intervals import clip, intersect, measure
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.communication._calls import comm_gain
from kinetoscope.rules.communication.cm401_exposed_communication import hide
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, times

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """What is uneven."""

    min_ratio: float = 1.5
    """Largest share over mean, typical of the instances."""
    min_share: float = 0.05
    """Exposed all-to-all as a share of the step."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Compare what the ranks get in the same all-to-all."""
    comm, device = analysis.comm, analysis.device
    if device is None or not trusted(analysis):
        return
    instance, ratio = _uneven(analysis)
    if not instance.size or float(np.median(ratio)) < options.min_ratio:
        return
    at = analysis.matches.index[analysis.place, instance]
    own = clip(analysis.extent(comm.row[at]), *analysis.times.window)
    stretches = intersect(device.exposed_comm, own)
    ns = measure(stretches) // analysis.steps
    if ns < options.min_share * analysis.step_ns:
        return
    exposed = np.zeros(comm.row.size, dtype=np.int64)
    exposed[at] = comm.exposed[at]
    worst = float(np.median(ratio))
    part = 1.0 - 1.0 / worst
    yield Hit(
        message=(
            f"In the all-to-alls one rank gets {times(worst)} the mean; {duration(ns)} of each "
            "step is spent in them with nothing beside."
        ),
        evidence=(
            Evidence("largest_over_mean", round(worst, 6), "ratio", "derived"),
            Evidence("exposed_time", ns, "ns"),
            Evidence("all_to_alls", round(at.size / analysis.steps_on_host), "count"),
        ),
        locations=analysis.locations(comm.row[at], calls=("all_to_all_single", "all_to_all")),
        fix=Fix(
            summary="Balance what the ranks get: the router's loss or bias, placement, capacity.",
            snippet="loss = loss + 0.01 * load_balancing_loss(router_logits, expert_mask)",
            reference="https://docs.pytorch.org/docs/stable/distributed.html",
        ),
        gain=comm_gain(
            analysis,
            hide(analysis, exposed, 0.3 * part),
            hide(analysis, exposed, 0.7 * part),
            hide(analysis, exposed, part),
            saved_ns=(int(0.7 * part * ns), int(part * ns)),
        ),
        confidence=0.7,
        claims=stretches,
    )


def _uneven(analysis: Analysis) -> tuple[IntArray, np.ndarray]:
    """This rank's matched all-to-alls, and largest over mean of what the ranks get in each."""
    matches, mine = analysis.matches, analysis.place
    here = np.flatnonzero(matches.present[mine])
    own = matches.index[mine, here]
    here = here[analysis.comm.is_a("all_to_all")[own]]
    got = np.full((len(analysis.ranks), here.size), np.nan)
    for place, rank in enumerate(analysis.ranks):
        sizes = np.array([m.out_nelems for m in rank.comm.messages], dtype=np.float64)
        there = matches.present[place, here]
        index = matches.index[place, here[there]]
        got[place, there] = sizes[rank.comm.message[index]]
    known = ~(np.isnan(got) | (got < 0)).any(axis=0) if here.size else np.zeros(0, dtype=bool)
    known &= (got > 0).any(axis=0) if here.size else known
    part = got[:, known]
    ratio = (
        part.max(axis=0) / np.maximum(part.mean(axis=0), 1.0) if part.size else part[0:0].ravel()
    )
    return here[known], ratio


def _rank(t: TraceBuilder, elements: int) -> None:
    for i in range(4):
        at = 10_000 * i
        t.step(at, 10_000)
        t.kernel("gemm", at + 100, 3_000, launch_at=at + 50)
        for k in range(3):
            t.all_reduce(
                at + 3_200 + 2_000 * k,
                1_900,
                elements=elements,
                launch_at=at + 70 + 20 * k,
                name="all_to_allv",
            )
        t.sync(at + 200, 8_900)


def _many(t: TraceBuilder) -> None:
    _rank(t, 9 << 20)


def _some(t: TraceBuilder) -> None:
    _rank(t, 1 << 20)


RULE = Rule(
    code="CM424",
    name="all-to-all-imbalance",
    class_="communication",
    summary="All-to-alls carry much more for some ranks than for others.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ranks", "device"}),
    evidence="TL",
    references=("https://docs.pytorch.org/docs/stable/distributed.html",),
    examples=(
        Example("one rank gets nine times what the other gets", _many, True, peers=(_some,)),
        Example("both get the same", _many, False, peers=(_many,)),
    ),
)
