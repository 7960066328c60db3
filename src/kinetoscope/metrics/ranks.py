"""The same collective on several ranks: waiting and lateness on one clock (M-15, M-16)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.clocks import offsets, residual
from kinetoscope.metrics.comm import Collectives
from kinetoscope.metrics.pairing import match_group, process_groups
from kinetoscope.trace.collective_names import JOINT
from kinetoscope.trace.trace import IntArray


@dataclass(frozen=True)
class Matches:
    """Collective instances (columns) that were found on at least two ranks (rows).

    Attributes:
        index: position in each rank's `Collectives`; -1 where the rank has none.
        start, end: on the common clock, ns; 0 where absent.
        clock: offset to subtract from each rank's own time to get the common clock, ns.
        residual_ns: how far apart the ranks leave joint collectives after alignment (90 %).
        drift_ppm: largest drift of a clock against the others.
        complete: whether every rank of the instance's group is here.
        group: number of the process group of each instance.
    """

    index: IntArray
    start: IntArray
    end: IntArray
    clock: IntArray
    residual_ns: int
    drift_ppm: float
    complete: npt.NDArray[np.bool_]
    group: IntArray

    @property
    def count(self) -> int:
        """Number of instances."""
        return int(self.index.shape[1])

    @cached_property
    def present(self) -> npt.NDArray[np.bool_]:
        """Which rank has which instance."""
        return self.index >= 0

    @cached_property
    def duration(self) -> IntArray:
        """Length on each rank; 0 where absent."""
        return self.end - self.start

    @cached_property
    def intrinsic(self) -> IntArray:
        """Cost of each instance without waiting: the shortest of the ranks (M-15), ns."""
        if self.count == 0:
            return np.empty(0, dtype=np.int64)
        far = np.iinfo(np.int64).max
        return np.asarray(np.where(self.present, self.duration, far).min(axis=0), dtype=np.int64)

    @cached_property
    def waiting(self) -> IntArray:
        """Length beyond the intrinsic cost on each rank: waiting for the others, ns."""
        return np.where(self.present, self.duration - self.intrinsic, 0)

    @cached_property
    def last(self) -> IntArray:
        """Rank (row) that arrived last at each instance: the one whose kernel is shortest."""
        if self.count == 0:
            return np.empty(0, dtype=np.int64)
        far = np.iinfo(np.int64).max
        return np.asarray(np.where(self.present, self.duration, far).argmin(axis=0), dtype=np.int64)

    def caused(self, rank: int) -> int:
        """How long the other ranks waited for this one, ns (mean over the waiting ranks)."""
        mine = self.last == rank
        others = np.delete(self.waiting, rank, axis=0)[:, mine]
        count = np.maximum(np.delete(self.present, rank, axis=0)[:, mine].sum(axis=0), 1)
        return int((others.sum(axis=0) / count).sum())


def match_ranks(ranks: Sequence[Collectives], bases: Sequence[int] | None = None) -> Matches:
    """Find the same collectives on all ranks and put the ranks on one clock.

    Args:
        ranks: the collectives of each rank.
        bases: what to add to each rank's times to get absolute ns (`base_time_ns`); zeros when
            not given.
    """
    origin = min(bases) if bases else 0
    base = np.array([b - origin for b in bases] if bases else [0] * len(ranks), dtype=np.int64)
    columns: list[IntArray] = []
    complete: list[bool] = []
    group: list[int] = []
    for number, (members, size) in enumerate(process_groups(ranks)):
        found = match_group(ranks, members, base)
        columns.append(found)
        complete += ((found >= 0).sum(axis=0) >= max(size, 2)).tolist()
        group += [number] * found.shape[1]
    index = np.concatenate(columns, axis=1) if columns else np.empty((len(ranks), 0), np.int64)
    return _aligned(
        ranks, index, base, np.array(complete, dtype=bool), np.array(group, dtype=np.int64)
    )


def _aligned(
    ranks: Sequence[Collectives],
    index: IntArray,
    base: IntArray,
    complete: npt.NDArray[np.bool_],
    group: IntArray,
) -> Matches:
    """Put the matched instances on one clock by the ends of joint collectives."""
    present = index >= 0
    start, end = np.zeros_like(index), np.zeros_like(index)
    joint = np.zeros(index.shape[1], dtype=bool)
    for r, c in enumerate(ranks):
        mine = present[r]
        start[r, mine] = c.start[index[r, mine]] + base[r]
        end[r, mine] = c.end[index[r, mine]] + base[r]
        joint[mine] |= c.is_a(*JOINT)[index[r, mine]]
    use = joint if joint.any() else np.ones(joint.size, dtype=bool)
    offset = offsets(end[:, use], present[:, use], group[use])
    shift = np.where(present, offset[:, None], 0)
    start, end = start - shift, end - shift
    order = np.argsort(np.where(present, end, 0).max(axis=0), kind="stable")
    spread, drift = residual(end[:, use], present[:, use])
    return Matches(
        index=index[:, order],
        start=start[:, order],
        end=end[:, order],
        clock=offset - base,
        residual_ns=spread,
        drift_ppm=drift,
        complete=complete[order],
        group=group[order],
    )
