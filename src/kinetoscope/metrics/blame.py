"""Who keeps a rank waiting in the end.

A rank that comes last at the collective of its data-parallel group may itself have waited before,
in its tensor-parallel group, for a rank that the others never meet. It only passes the delay on;
the rank at the end of the chain is late.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.intervals import Intervals, intersect, union
from kinetoscope.metrics.ranks import Matches
from kinetoscope.trace.trace import IntArray

_LEAST_PART = 0.01
"""Smaller parts of a wait stay with the rank that came last."""


@dataclass(frozen=True)
class Blame:
    """Waiting by the rank that causes it.

    Attributes:
        caused: waiting of all other ranks that each rank causes, ns.
        parts: per rank (instance, causing rank, part of the wait 0..1) as three arrays; the parts
            of a wait add up to 1.
    """

    caused: IntArray
    parts: tuple[tuple[IntArray, IntArray, npt.NDArray[np.float64]], ...]


def blame(matches: Matches, waited: IntArray) -> Blame:
    """Follow each wait back to the rank that causes it.

    Between two collectives of a group its members' times differ by what they worked and by what
    they waited elsewhere. As much of a rank's lateness as it waited longer than the member that
    waits for it now is passed on to those it waited for; the rest is its own.

    Args:
        matches: instances in the order of their ends.
        waited: waiting of each rank at each instance that lengthens its step, ns.
    """
    ranks = waited.shape[0]
    total = np.zeros((ranks, ranks))  # [who waited, who caused it]
    before: dict[int, npt.NDArray[np.float64]] = {}
    found: list[list[tuple[int, int, float]]] = [[] for _ in range(ranks)]
    last, group = matches.last.tolist(), matches.group.tolist()
    for i in range(matches.count):
        members = np.flatnonzero(matches.present[:, i])
        wait = waited[members, i].astype(np.float64)
        now = total[members]
        if wait.any():
            since = now - before[group[i]][members] if group[i] in before else now
            causes = _causes(members, last[i], wait, since)
            now = now + causes
            total[members] = now
            _note(found, members, i, wait, causes)
        if group[i] not in before:
            before[group[i]] = np.zeros((ranks, ranks))
        before[group[i]][members] = now
    return Blame(total.sum(axis=0).astype(np.int64), tuple(_arrays(each) for each in found))


def _causes(
    members: IntArray,
    last: int,
    wait: npt.NDArray[np.float64],
    since: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """The waiting of each member (rows) by the rank that causes it (columns), ns."""
    at = int(np.searchsorted(members, last))
    elsewhere = since.sum(axis=1)
    result = np.zeros_like(since)
    if elsewhere[at] > 0:
        passed = np.clip(elsewhere[at] - elsewhere, 0, wait)
        result = passed[:, None] * (since[at] / elsewhere[at])
        result[np.arange(members.size), members] = 0.0  # nobody waits for itself
        result[result < _LEAST_PART * wait[:, None]] = 0.0
    result[:, last] += wait - result.sum(axis=1)
    return result


def _note(
    found: list[list[tuple[int, int, float]]],
    members: IntArray,
    instance: int,
    wait: npt.NDArray[np.float64],
    causes: npt.NDArray[np.float64],
) -> None:
    for k, rank in np.argwhere(causes > 0).tolist():
        found[int(members[k])].append((instance, rank, float(causes[k, rank] / wait[k])))


def _arrays(
    each: list[tuple[int, int, float]],
) -> tuple[IntArray, IntArray, npt.NDArray[np.float64]]:
    return (
        np.array([i for i, _, _ in each], dtype=np.int64),
        np.array([rank for _, rank, _ in each], dtype=np.int64),
        np.array([part for _, _, part in each], dtype=np.float64),
    )


def by_owner(
    within: Intervals, stretches: tuple[IntArray, IntArray], owner: IntArray
) -> dict[int, Intervals]:
    """Give the parts of a union that stretches cover to the owners of the stretches.

    Where stretches overlap, the one that began first counts.

    Args:
        within: a union.
        stretches: starts and ends, ns, in any order.
        owner: of each stretch.
    """
    start, end = stretches
    use = np.flatnonzero(end > start)
    use = use[np.argsort(start[use], kind="stable")]
    reach = np.maximum.accumulate(end[use]) if use.size else end[use]
    begin = np.maximum(start[use], np.concatenate((start[use][:1], reach[:-1])))
    result: dict[int, Intervals] = {}
    for rank in np.unique(owner[use]).tolist():
        mine = owner[use] == rank
        part = intersect(within, union(begin[mine], end[use][mine]))
        if part[0].size:
            result[rank] = part
    return result
