"""One process group is slower than others of its size.

## What it finds
With the recordings of all ranks: among at least three groups of the same size, one whose best large
collective reaches less than 70 % of the median of these groups.

## Why it matters
Groups that are built alike should run alike. One that does not has a link, a network card or a host
of its own trouble, and the whole job runs at its pace.

## How to fix it
Compare that group's hosts with the others: link state and width (`nvidia-smi topo -m`, `ibstat`),
errors, congestion; run nccl-tests there; take the host out.

## Limits
Groups within a host and across hosts differ by design; equal size is all that a recording tells.
Not yet proved by a recording, so off by default.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.analysis.job import trusted
from kinetoscope.result import Evidence, Fix, Gain
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.units import percent, rate

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """What is an outlier."""

    min_bytes: int = 16 << 20
    """Smaller messages are limited by latency."""
    min_groups: int = 3
    """Groups of the same size that are compared."""
    max_of_median: float = 0.70
    """Of the median bandwidth of these groups."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Compare the best large collectives of groups of the same size."""
    if not trusted(analysis) or not analysis.comm.on_device:
        return
    speeds = _speeds(analysis, options)
    for size in sorted({size for size, _ in speeds.values()}):
        alike = {g: speed for g, (s, speed) in speeds.items() if s == size}
        usual = float(np.median(list(alike.values())))
        worst = min(alike, key=lambda g: alike[g])
        if len(alike) < options.min_groups or alike[worst] >= options.max_of_median * usual:
            continue
        matches = analysis.matches
        there = matches.present[:, matches.group == worst].any(axis=1)
        ranks = ", ".join(str(analysis.ranks[r].rank) for r in np.flatnonzero(there).tolist())
        yield Hit(
            message=(
                f"The group of ranks {ranks} moves {rate(alike[worst], 'B')} at best, "
                f"{percent(alike[worst] / usual)} of what groups of {size} usually do here."
            ),
            evidence=(
                Evidence("bus_bandwidth", round(alike[worst]), "bytes_per_s", "derived"),
                Evidence("usual", round(usual), "bytes_per_s", "derived"),
                Evidence("groups", len(alike), "count"),
            ),
            fix=Fix(
                summary=f"Compare links and network cards of the hosts of ranks {ranks}.",
                snippet="nvidia-smi topo -m && ibstat",
                reference="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/"
                "troubleshooting.html",
            ),
            gain=Gain(1.0, 1.0, 1.0, basis="none"),
            confidence=0.4,
            at_least="medium",
            at_most="medium",
            keep=True,
        )


def _speeds(analysis: Analysis, options: Thresholds) -> dict[int, tuple[int, float]]:
    """Size and best bus bandwidth of each complete group with large messages."""
    matches = analysis.matches
    found: dict[int, tuple[int, float]] = {}
    for i in np.flatnonzero(matches.complete).tolist():
        place = int(np.flatnonzero(matches.present[:, i])[0])
        comm = analysis.ranks[place].comm
        message = comm.messages[comm.message[matches.index[place, i]]]
        if message.bytes < options.min_bytes:
            continue
        speed = message.bus_bandwidth(int(matches.intrinsic[i]))
        group = int(matches.group[i])
        found[group] = (message.group_size, max(speed, found.get(group, (0, 0.0))[1]))
    return found


def _pair(t: TraceBuilder, first: int, us: int) -> None:
    for i in range(4):
        at = 10_000 * i
        t.step(at, 10_000)
        t.kernel("gemm", at + 100, 3_000, launch_at=at + 50)
        t.all_reduce(
            at + 3_110,
            us,
            elements=16 << 20,
            launch_at=at + 70,
            group=f"dp{first}",
            ranks=(first, first + 1),
        )
        t.sync(at + 120, 3_050 + us)


def _0(t: TraceBuilder) -> None:
    _pair(t, 0, 300)


def _2(t: TraceBuilder) -> None:
    _pair(t, 2, 300)


def _4(t: TraceBuilder) -> None:
    _pair(t, 4, 300)


def _4_slow(t: TraceBuilder) -> None:
    _pair(t, 4, 3_000)


RULE = Rule(
    code="CM427",
    name="slow-link-or-nic",
    class_="communication",
    summary="One process group is slower than others of its size.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ranks", "device"}),
    evidence="L",
    references=("https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",),
    examples=(
        Example(
            "three pairs, one ten times slower", _0, True, peers=(_0, _2, _2, _4_slow, _4_slow)
        ),
        Example("three equal pairs", _0, False, peers=(_0, _2, _2, _4, _4)),
    ),
    preview=True,
)
