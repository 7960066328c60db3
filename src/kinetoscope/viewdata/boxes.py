"""The boxes of a timeline, and their reduction to a number that a page can carry.

A reduction joins events that are shorter than a limit with their neighbours in the same row and
the same cell of a grid as wide as the limit. What a box loses in detail it keeps in sum: the
number of its events, their total time, and the name of the longest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetoscope.trace.trace import IntArray

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Boxes:
    """Boxes sorted by (lane, row, start); ns. One entry each.

    Attributes:
        lane: number of the lane.
        row: depth within the lane.
        name: number of the name.
        event: event-table row of the (longest) event; -1: none.
        count: events in the box.
        busy: their summed duration.
    """

    lane: IntArray
    row: IntArray
    start: IntArray
    end: IntArray
    name: IntArray
    event: IntArray
    count: IntArray
    busy: IntArray

    def __len__(self) -> int:
        """Number of boxes."""
        return int(self.start.size)

    def take(self, which: BoolArray | IntArray) -> Boxes:
        """Some of the boxes."""
        return Boxes(
            self.lane[which],
            self.row[which],
            self.start[which],
            self.end[which],
            self.name[which],
            self.event[which],
            self.count[which],
            self.busy[which],
        )


def make_boxes(
    lane: IntArray, row: IntArray, start: IntArray, end: IntArray, name: IntArray, event: IntArray
) -> Boxes:
    """One box an event, sorted."""
    order = np.lexsort((start, row, lane))
    boxes = Boxes(lane, row, start, end, name, event, np.ones_like(start), end - start)
    return boxes.take(order)


def join(boxes: Boxes, limit: int, kept: tuple[int, int] | None) -> Boxes:
    """Join what is shorter than `limit` ns, except in the stretch `kept`."""
    if limit <= 0 or len(boxes) == 0:
        return boxes
    first = np.flatnonzero(_begins(boxes, limit, kept))
    where = np.arange(len(boxes), dtype=np.int64)
    # The longest of each group: its length decides, its position comes along in the low bits.
    bits = len(boxes).bit_length()
    longest = np.maximum.reduceat((boxes.busy << bits) | where, first) & ((1 << bits) - 1)
    return Boxes(
        boxes.lane[first],
        boxes.row[first],
        boxes.start[first],
        np.maximum.reduceat(boxes.end, first),
        boxes.name[longest],
        boxes.event[longest],
        np.add.reduceat(boxes.count, first),
        np.add.reduceat(boxes.busy, first),
    )


def _begins(boxes: Boxes, limit: int, kept: tuple[int, int] | None) -> BoolArray:
    """Where a group begins."""
    small = boxes.end - boxes.start < limit
    if kept is not None:
        small &= (boxes.end <= kept[0]) | (boxes.start >= kept[1])
    cell = boxes.start // limit
    new = np.ones(len(boxes), dtype=bool)
    same = (
        (boxes.lane[1:] == boxes.lane[:-1])
        & (boxes.row[1:] == boxes.row[:-1])
        & (cell[1:] == cell[:-1])
        & small[1:]
        & small[:-1]
    )
    new[1:] = ~same
    return new


@dataclass(frozen=True)
class Reduction:
    """A result of `reduce`.

    Attributes:
        limit_ns: events shorter than this were joined; 0: none.
        kept: stretch in which nothing was joined.
        joined: events in joint boxes.
        joint: joint boxes.
    """

    boxes: Boxes
    limit_ns: int = 0
    kept: tuple[int, int] | None = None
    joined: int = 0
    joint: int = 0


_UNJOINED = 1.25
"""A complete timeline packs better than a joined one, so it may have more boxes."""
_LADDER = tuple(m * 10**e for e in range(3, 9) for m in (1, 2, 5))
"""Limits to try, 1 us to 0.5 s."""


def reduce(boxes: Boxes, most: int, edges: IntArray) -> Reduction:
    """Bring the boxes down to about `most`, with a few complete steps in the middle.

    Args:
        boxes: all of them.
        most: how many a page can carry.
        edges: borders of the steps, ns; the kept stretch is made of whole steps.
    """
    if len(boxes) <= most * _UNJOINED:
        return Reduction(boxes)
    kept = _middle(boxes, edges, int(0.4 * most))
    for limit in _LADDER:
        reduced = join(boxes, limit, kept)
        if len(reduced) <= most:
            break
    several = reduced.count > 1
    return Reduction(reduced, limit, kept, int(reduced.count[several].sum()), int(several.sum()))


def _middle(boxes: Boxes, edges: IntArray, most: int) -> tuple[int, int] | None:
    """As many whole steps around the middle one as `most` boxes allow."""
    if edges.size < 2:
        return None
    at = np.sort(boxes.start)
    below = np.searchsorted(at, edges)
    low = (edges.size - 1) // 2
    high = low + 1
    if below[high] - below[low] > most:
        return None
    while True:
        if high + 1 < edges.size and below[high + 1] - below[low] <= most:
            high += 1
        elif low > 0 and below[high] - below[low - 1] <= most:
            low -= 1
        else:
            return int(edges[low]), int(edges[high])
