"""In which order the runs of two sides were made: in turns, or one side after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from kinetoscope.result import Diagnosis

PAIRED_RUNS = 4
"""From this many runs a side on neighbours are held against each other: with three, differences of
only three couples, 5.3 % of 300 comparisons of a program with itself were called faster or slower
on a busy machine, against 2.7 % without couples."""

Order = Literal["turns", "one_side_first", "mixed", "unknown"]


def order_of(before: Sequence[Diagnosis], after: Sequence[Diagnosis]) -> Order:
    """Return how the runs were made, by the times at which the recordings began.

    * turns: as many on each side, and each run of one side next to one of the other,
    * one_side_first: all runs of one side before those of the other; what drifts meanwhile (clocks,
      temperature, neighbours) then counts as a difference,
    * unknown: a file does not say when it was made, or a side has a single run.
    """
    starts = [[_started(run) for run in side] for side in (before, after)]
    known = [[start for start in side if start is not None] for side in starts]
    if (
        known != starts
        or min(map(len, known)) < 2
        or len({*known[0], *known[1]}) < sum(map(len, known))
    ):
        return "unknown"
    a, b = known
    if max(a) < min(b) or max(b) < min(a):
        return "one_side_first"
    sides = [side for _, side in sorted([(s, 0) for s in a] + [(s, 1) for s in b])]
    couples = zip(sides[0::2], sides[1::2], strict=False)
    alike = len(a) == len(b) and all(one != other for one, other in couples)
    return "turns" if alike else "mixed"


def in_order(runs: Sequence[Diagnosis]) -> list[Diagnosis]:
    """Return the runs of a side as they were made; as given where a file does not say."""
    if any(_started(run) is None for run in runs):
        return list(runs)
    return sorted(runs, key=lambda run: _started(run) or 0)


def paired(order: Order, before: Sequence[Diagnosis]) -> bool:
    """Whether run i of one side may be held against run i of the other."""
    return order == "turns" and len(before) >= PAIRED_RUNS


def _started(run: Diagnosis) -> int | None:
    return run.profile.started_ns if run.profile else None
