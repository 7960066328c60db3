"""The same collective on several ranks: matching, clocks, waiting, lateness (M-15, M-16).

Recordings of two ranks do not begin with the same collective: the windows shift with the lag of
each device. Lists are aligned by sequence numbers when they were recorded, else by the shift at
which most messages agree; among shifts that agree about equally well, the one at which the ranks
leave the collectives together, for that is what a collective does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.comm import Collectives, Message
from kinetoscope.trace.collective_names import JOINT
from kinetoscope.trace.trace import IntArray

_MOST_SHIFTS = 1024
"""Shifts tried in each direction; windows differ by a few steps at most."""
_ABOUT_EQUAL = 0.85
"""A shift with this part of the best shift's agreement may still be the right one."""
_LEAST_SHARE = 0.6
"""Below this share of agreeing messages two lists are not of the same job."""


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
    """

    index: IntArray
    start: IntArray
    end: IntArray
    clock: IntArray
    residual_ns: int
    drift_ppm: float
    complete: npt.NDArray[np.bool_]

    @property
    def count(self) -> int:
        """Number of instances."""
        return int(self.index.shape[1])

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """Which rank has which instance."""
        return self.index >= 0

    @property
    def duration(self) -> IntArray:
        """Length on each rank; 0 where absent."""
        return self.end - self.start

    @property
    def intrinsic(self) -> IntArray:
        """Cost of each instance without waiting: the shortest of the ranks (M-15), ns."""
        if self.count == 0:
            return np.empty(0, dtype=np.int64)
        far = np.iinfo(np.int64).max
        return np.asarray(np.where(self.present, self.duration, far).min(axis=0), dtype=np.int64)

    @property
    def waiting(self) -> IntArray:
        """Length beyond the intrinsic cost on each rank: waiting for the others, ns."""
        return np.where(self.present, self.duration - self.intrinsic, 0)

    @property
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
    for members in _by_group(ranks):
        found = _match_group(ranks, members, base)
        columns.append(found)
        size = _group_size(ranks, members)
        complete += ((found >= 0).sum(axis=0) >= max(size, 2)).tolist()
    index = np.concatenate(columns, axis=1) if columns else np.empty((len(ranks), 0), np.int64)
    return _aligned(ranks, index, base, np.array(complete, dtype=bool))


def _by_group(ranks: Sequence[Collectives]) -> list[list[IntArray]]:
    """Positions of each process group's collectives on each rank, in time order.

    Kernels launched before the recording carry no group: they belong to the only group, or to
    none when there are several.
    """
    names = list(dict.fromkeys(m.group for c in ranks for m in c.messages if m.recorded))
    result = []
    for name in names or [""]:
        members = []
        for c in ranks:
            flags = np.array(
                [_joins(m, name, alone=len(names) <= 1) for m in c.messages], dtype=bool
            )
            members.append(np.flatnonzero(flags[c.message]) if c.message.size else c.message)
        if sum(m.size > 0 for m in members) >= 2:
            result.append(members)
    return result


def _joins(message: Message, group: str, *, alone: bool) -> bool:
    if message.collective in ("send", "recv") or message.group_size == 1:
        return False
    return message.group == group if message.recorded else alone


def _group_size(ranks: Sequence[Collectives], members: list[IntArray]) -> int:
    for c, mine in zip(ranks, members, strict=True):
        for number in np.unique(c.message[mine]).tolist():
            size: int = c.messages[number].group_size
            if size:
                return size
    return 0


def _match_group(ranks: Sequence[Collectives], members: list[IntArray], base: IntArray) -> IntArray:
    """Positions (ranks x instances) of one group's collectives; -1 where a rank has none."""
    codes, kinds = _codes(ranks, members)
    reference = max(range(len(ranks)), key=lambda r: int((codes[r] >= 0).sum()))
    size = members[reference].size
    rows = []
    for r, mine in enumerate(members):
        row = np.full(size, -1, dtype=np.int64)
        if r == reference:
            row[:] = mine
        elif mine.size:
            a, b = members[reference], mine
            at = _partner(
                _Side(
                    codes[reference],
                    kinds[reference],
                    ranks[reference].seq[a],
                    ranks[reference].end[a] + base[reference],
                ),
                _Side(codes[r], kinds[r], ranks[r].seq[b], ranks[r].end[b] + base[r]),
            )
            row[at >= 0] = mine[at[at >= 0]]
        rows.append(row)
    index = np.stack(rows)
    return index[:, (index >= 0).sum(axis=0) >= 2]


def _codes(
    ranks: Sequence[Collectives], members: list[IntArray]
) -> tuple[list[IntArray], list[IntArray]]:
    """Number of each instance's message and of its collective, -1 for unknown."""
    full: dict[tuple[object, ...], int] = {}
    kind: dict[str, int] = {}
    codes, kinds = [], []
    for c, mine in zip(ranks, members, strict=True):
        code = np.full(max(len(c.messages), 1), -1, dtype=np.int64)
        which = code.copy()
        for i, m in enumerate(c.messages):
            if m.collective:
                which[i] = kind.setdefault(m.collective, len(kind))
            if m.recorded:
                # The split of an uneven collective differs between ranks; its total may too.
                nelems = -1 if m.collective == "all_to_all" else m.in_nelems
                key = (m.collective, m.dtype, nelems, m.group_size)
                code[i] = full.setdefault(key, len(full))
        codes.append(code[c.message[mine]])
        kinds.append(which[c.message[mine]])
    return codes, kinds


@dataclass(frozen=True)
class _Side:
    code: IntArray
    kind: IntArray
    seq: IntArray
    end: IntArray


def _partner(a: _Side, b: _Side) -> IntArray:
    """For each instance of `a` the position in `b`, -1 for none."""
    if a.seq.size and b.seq.size and (a.seq >= 0).all() and (b.seq >= 0).all():
        order = np.argsort(b.seq, kind="stable")
        at = np.minimum(np.searchsorted(b.seq[order], a.seq), b.seq.size - 1)
        return np.where(b.seq[order][at] == a.seq, order[at], -1)
    shift = _best_shift(a, b)
    if shift is None:
        return np.full(a.code.size, -1, dtype=np.int64)
    at = np.arange(a.code.size) + shift
    inside = (at >= 0) & (at < b.code.size)
    at = np.where(inside, at, 0)
    fits = inside & _compatible(a.code, b.code[at]) & _compatible(a.kind, b.kind[at])
    return np.where(fits, at, -1)


def _compatible(a: IntArray, b: IntArray) -> npt.NDArray[np.bool_]:
    return np.asarray((a == b) | (a < 0) | (b < 0))


def _best_shift(a: _Side, b: _Side) -> int | None:
    """Shift k for which a[i] and b[i + k] are the same collective; None when no shift fits."""
    known = bool((a.code >= 0).any() and (b.code >= 0).any())
    left, right = (a.code, b.code) if known else (a.kind, b.kind)
    shifts = range(-min(a.code.size - 1, _MOST_SHIFTS), min(b.code.size - 1, _MOST_SHIFTS) + 1)
    agree = {k: int((x == y)[x >= 0].sum()) for k in shifts for x, y in [_shifted(left, right, k)]}
    best = max(agree.values(), default=0)
    most = min(int((left >= 0).sum()), int((right >= 0).sum()))
    if best < max(_LEAST_SHARE * most, 1):
        return None
    likely = [k for k, count in agree.items() if count >= _ABOUT_EQUAL * best]
    return min(likely, key=lambda k: (_spread(*_shifted(a.end, b.end, k)), -agree[k]))


def _shifted(a: IntArray, b: IntArray, k: int) -> tuple[IntArray, IntArray]:
    first, last = max(0, -k), min(a.size, b.size - k)
    return a[first:last], b[first + k : last + k]


def _spread(a: IntArray, b: IntArray) -> float:
    """How unequal the distances of the ends are; a constant distance is a matter of clocks."""
    if a.size < 3:
        return float("inf")
    distance = b - a
    return float(np.median(np.abs(distance - int(np.median(distance)))))


def _aligned(
    ranks: Sequence[Collectives],
    index: IntArray,
    base: IntArray,
    complete: npt.NDArray[np.bool_],
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
    offset = _offsets(end[:, use], present[:, use])
    shift = np.where(present, offset[:, None], 0)
    start, end = start - shift, end - shift
    order = np.argsort(np.where(present, end, 0).max(axis=0), kind="stable")
    residual, drift = _residual(end[:, use], present[:, use])
    return Matches(
        index=index[:, order],
        start=start[:, order],
        end=end[:, order],
        clock=offset - base,
        residual_ns=residual,
        drift_ppm=drift,
        complete=complete[order],
    )


def _offsets(end: IntArray, present: npt.NDArray[np.bool_]) -> IntArray:
    """Median distance of each rank's ends from the middle of all ranks' ends."""
    result = np.zeros(end.shape[0], dtype=np.int64)
    if end.shape[1] == 0:
        return result
    middle = _middle(end, present)
    for r in range(end.shape[0]):
        mine = present[r]
        if mine.any():
            result[r] = int(np.median(end[r, mine] - middle[mine]))
    return result


def _middle(end: IntArray, present: npt.NDArray[np.bool_]) -> IntArray:
    """Median end of each instance over the ranks that have it, as exact integers."""
    origin = int(end[present].min()) if present.any() else 0
    values = np.where(present, (end - origin).astype(np.float64), np.nan)
    return np.nanmedian(values, axis=0).astype(np.int64) + origin


def _residual(end: IntArray, present: npt.NDArray[np.bool_]) -> tuple[int, float]:
    """Spread of the aligned ends (90 % of the instances) and the largest drift, ppm."""
    if end.shape[1] < 2:
        return 0, 0.0
    middle = _middle(end, present)
    off = np.where(present, end - middle, 0)
    spread = int(np.percentile(np.abs(off).max(axis=0), 90))
    drift = 0.0
    at = (middle - middle[0]).astype(np.float64)
    if end.shape[1] >= 10 and at.max() > 0:
        drift = max(abs(float(np.polyfit(at, row.astype(np.float64), 1)[0])) for row in off) * 1e6
    return spread, round(drift, 3)
