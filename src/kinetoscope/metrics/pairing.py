"""Which collectives of several ranks are the same one (M-16).

Recordings of two ranks do not begin with the same collective: the windows shift with the lag of
each device. Lists are aligned by sequence numbers when they were recorded, else by the shift at
which most messages agree; among shifts that agree about equally well, the one at which the ranks
leave the collectives together, for that is what a collective does. Each process group is matched
by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.comm import Collectives, Message
from kinetoscope.trace.trace import IntArray

_MOST_SHIFTS = 1024
"""Shifts tried in each direction; windows differ by a few steps at most."""
_ABOUT_EQUAL = 0.85
"""A shift with this part of the best shift's agreement may still be the right one."""
_LEAST_SHARE = 0.6
"""Below this share of agreeing messages two lists are not of the same job."""
_MOST_COMPARED = 1 << 22
"""Pairs of messages compared at a time."""
_LEAVE_TOGETHER_NS = 50_000
"""Ranks of one group leave their collectives within this, clocks aside."""


_Members = list[IntArray]


def process_groups(ranks: Sequence[Collectives]) -> list[tuple[_Members, int]]:
    """Positions of each process group's collectives on each rank in time order, and its size.

    Kernels launched before the recording carry no group: they belong to the only group, or to
    none when there are several.
    """
    names = list(dict.fromkeys(m.group for c in ranks for m in c.messages if m.recorded))
    result: list[tuple[_Members, int]] = []
    for name in names or [""]:
        members = []
        for c in ranks:
            flags = np.array(
                [_joins(m, name, alone=len(names) <= 1) for m in c.messages], dtype=bool
            )
            members.append(np.flatnonzero(flags[c.message]) if c.message.size else c.message)
        size = _group_size(ranks, members)
        there = sum(m.size > 0 for m in members)
        if size and there > size:
            result += [(part, size) for part in _told_apart(ranks, members, size)]
        elif there >= 2:
            result.append((members, size))
    return result


def _joins(message: Message, group: str, *, alone: bool) -> bool:
    if message.collective in ("send", "recv") or message.group_size == 1:
        return False
    return message.group == group if message.recorded else alone


def _group_size(ranks: Sequence[Collectives], members: _Members) -> int:
    for c, mine in zip(ranks, members, strict=True):
        for number in np.unique(c.message[mine]).tolist():
            size: int = c.messages[number].group_size
            if size:
                return size
    return 0


def _told_apart(ranks: Sequence[Collectives], members: _Members, size: int) -> list[_Members]:
    """Groups of `size` ranks among more that the recording does not tell apart.

    Older recordings name no group. Ranks of one group leave each collective together; where that
    does not give groups of the right size, nothing is matched: a rank of another group is never
    late.
    """
    codes, kinds = _codes(ranks, members)
    left = [r for r, mine in enumerate(members) if mine.size]
    found: list[_Members] = []
    while left:
        first = left[0]
        mine = _side(ranks[first], members[first], codes[first], kinds[first], 0)
        together = [first]
        for r in left[1:]:
            other = _side(ranks[r], members[r], codes[r], kinds[r], 0)
            shift = _best_shift(mine, other)
            if shift is not None and _spread(*_shifted(mine.end, other.end, shift)) <= (
                _LEAVE_TOGETHER_NS
            ):
                together.append(r)
        if len(together) != size:
            return []
        left = [r for r in left if r not in together]
        none = np.empty(0, dtype=np.int64)
        found.append([m if r in together else none for r, m in enumerate(members)])
    return found


def match_group(ranks: Sequence[Collectives], members: _Members, base: IntArray) -> IntArray:
    """Positions (ranks x instances) of one group's collectives; -1 where a rank has none."""
    codes, kinds = _codes(ranks, members)
    sides = [
        _side(c, mine, codes[r], kinds[r], int(base[r]))
        for r, (c, mine) in enumerate(zip(ranks, members, strict=True))
    ]
    reference = max(range(len(ranks)), key=lambda r: int((codes[r] >= 0).sum()))
    rows = []
    for r, mine in enumerate(members):
        row = np.full(members[reference].size, -1, dtype=np.int64)
        if r == reference:
            row[:] = mine
        elif mine.size:
            at = _partner(sides[reference], sides[r])
            row[at >= 0] = mine[at[at >= 0]]
        rows.append(row)
    index = np.stack(rows)
    return index[:, (index >= 0).sum(axis=0) >= 2]


def _codes(
    ranks: Sequence[Collectives], members: _Members
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
    """One rank's collectives of a group: message, collective, sequence number, end (ns)."""

    code: IntArray
    kind: IntArray
    seq: IntArray
    end: IntArray


def _side(c: Collectives, mine: IntArray, code: IntArray, kind: IntArray, base: int) -> _Side:
    return _Side(code, kind, _numbered(c.seq[mine]), c.end[mine] + base)


def _numbered(seq: IntArray) -> IntArray:
    """Sequence numbers made unique: the calls of one coalesced group share theirs."""
    if not (seq >= 0).any():
        return seq
    order = np.argsort(seq, kind="stable")
    ordered = seq[order]
    first = np.searchsorted(ordered, ordered, side="left")
    result = np.empty_like(seq)
    result[order] = (ordered << 12) + np.arange(seq.size) - first
    return np.where(seq >= 0, result, -1)


def _partner(a: _Side, b: _Side) -> IntArray:
    """For each instance of `a` the position in `b`, -1 for none."""
    shift: int | None
    at = np.full(a.code.size, -1, dtype=np.int64)
    if (a.seq >= 0).any() and (b.seq >= 0).any():
        order = np.argsort(b.seq, kind="stable")
        i = np.minimum(np.searchsorted(b.seq[order], a.seq), b.seq.size - 1)
        at = np.where((b.seq[order][i] == a.seq) & (a.seq >= 0), order[i], -1)
        moves = (at - np.arange(at.size))[at >= 0]
        # Kernels from before the recording have no number; they follow the others' shift.
        shift = int(moves[0]) if moves.size and (moves == moves[0]).all() else None
        if shift is None or ((a.seq >= 0).all() and (b.seq >= 0).all()):
            return at
    else:
        shift = _best_shift(a, b)
        if shift is None:
            return at
    moved = np.arange(a.code.size) + shift
    inside = (moved >= 0) & (moved < b.code.size)
    moved = np.where(inside, moved, 0)
    fits = inside & _compatible(a.code, b.code[moved]) & _compatible(a.kind, b.kind[moved])
    return np.where(at >= 0, at, np.where(fits, moved, -1))


def _compatible(a: IntArray, b: IntArray) -> npt.NDArray[np.bool_]:
    return np.asarray((a == b) | (a < 0) | (b < 0))


def _best_shift(a: _Side, b: _Side) -> int | None:
    """Shift k for which a[i] and b[i + k] are the same collective; None when no shift fits."""
    known = bool((a.code >= 0).any() and (b.code >= 0).any())
    left, right = (a.code, b.code) if known else (a.kind, b.kind)
    lowest = -min(a.code.size - 1, _MOST_SHIFTS)
    agree = _agreement(left, right, lowest, min(b.code.size - 1, _MOST_SHIFTS))
    best = int(agree.max(initial=0))
    most = min(int((left >= 0).sum()), int((right >= 0).sum()))
    if best < max(_LEAST_SHARE * most, 1):
        return None
    likely: list[int] = (np.flatnonzero(agree >= _ABOUT_EQUAL * best) + lowest).tolist()
    return min(likely, key=lambda k: (_spread(*_shifted(a.end, b.end, k)), -int(agree[k - lowest])))


def _agreement(a: IntArray, b: IntArray, lowest: int, highest: int) -> IntArray:
    """For each shift of [lowest, highest] how many known a[i] equal b[i + shift]."""
    before, after = max(-lowest, 0), max(a.size + highest - b.size, 0)
    padded = np.concatenate((np.full(before, -2), b, np.full(after, -2)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, a.size)[: highest - lowest + 1]
    wanted = np.where(a >= 0, a, -3)
    rows = max(_MOST_COMPARED // max(a.size, 1), 1)
    parts = [
        (windows[i : i + rows] == wanted).sum(axis=1) for i in range(0, windows.shape[0], rows)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _shifted(a: IntArray, b: IntArray, k: int) -> tuple[IntArray, IntArray]:
    first, last = max(0, -k), min(a.size, b.size - k)
    return a[first:last], b[first + k : last + k]


def _spread(a: IntArray, b: IntArray) -> float:
    """How unequal the distances of the ends are; a constant distance is a matter of clocks."""
    if a.size < 3:
        return float("inf")
    distance = b - a
    return float(np.median(np.abs(distance - int(np.median(distance)))))
