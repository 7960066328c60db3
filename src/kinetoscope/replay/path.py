"""The longest chain of things that waited for each other, through a replay (M-17).

Every moment of a replay has one cause: an event began when its stream was free, when its launch
arrived, or when the event that it waits for had ended, whichever came last; a call began when the
host was done with what came before, and returned from a wait when the device was done. Walking
back along the causes from the end of the last step gives a chain without gaps: shortening a thing
that is not on it gains nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from kinetoscope.replay.model import Model
from kinetoscope.replay.timeline import Timeline
from kinetoscope.trace.trace import IntArray


class Piece(IntEnum):
    """What a stretch of the path is."""

    HOST = 0
    """Host work before a call, or the call itself."""
    DEVICE = 1
    """A device event at work."""
    LAUNCH = 2
    """From a call to the earliest start of its event."""
    HANDOVER = 3
    """Between the end of an event and what waited for it: another event, or the host."""


@dataclass(frozen=True)
class Path:
    """Stretches of the path, last first, ns on the clock of the replay; they leave no gap.

    Attributes:
        piece: what the stretch is (`Piece`).
        index: the call of a HOST or LAUNCH stretch; the event of the others.
        start, end: of the stretch.
    """

    piece: npt.NDArray[np.int8]
    index: IntArray
    start: IntArray
    end: IntArray

    def within(self, low: int, high: int) -> Path:
        """The part of the path inside [low, high)."""
        start, end = np.maximum(self.start, low), np.minimum(self.end, high)
        keep = end > start
        return Path(self.piece[keep], self.index[keep], start[keep], end[keep])


def critical_path(model: Model, found: Timeline) -> Path:
    """Walk back from the last thing that happens to the first step mark."""
    walk = _Walk(model, found)
    ends = np.where(found.kept, found.end, np.iinfo(np.int64).min)
    last = int(ends.argmax()) if ends.size else -1
    if last >= 0 and ends[last] >= found.call_end[-1]:
        walk.back(on_device=True, index=last)
    else:
        walk.back(on_device=False, index=found.call_end.size - 1)
    piece, index, start, end = zip(*walk.pieces, strict=True) if walk.pieces else ((), (), (), ())
    return Path(
        np.array(piece, dtype=np.int8),
        np.array(index, dtype=np.int64),
        np.array(start, dtype=np.int64),
        np.array(end, dtype=np.int64),
    )


class _Walk:
    """Goes from each moment to its cause, in plain lists: one step depends on the one before."""

    def __init__(self, model: Model, found: Timeline) -> None:
        self.pieces: list[tuple[Piece, int, int, int]] = []
        self.origin = int(found.marks[0])
        owner = np.repeat(np.arange(model.call_row.size), np.diff(model.first_event))
        self.owner: list[int] = owner.tolist()
        self.before: list[int] = _before_on_stream(model, found).tolist()
        self.begin, self.end = found.begin.tolist(), found.end.tolist()
        self.start, self.returned = found.call_start.tolist(), found.call_end.tolist()
        self.blocks, self.tail = found.blocks.tolist(), model.tail.tolist()
        self.delay, self.lag = model.delay.tolist(), model.lag.tolist()
        self.depends: list[int] = model.depends_on.tolist()

    def back(self, *, on_device: bool, index: int) -> None:
        """Walk back from the end of an event, or from the return of a call."""
        while index >= 0:
            step = self._from_event if on_device else self._from_call
            on_device, index = step(index)

    def _add(self, piece: Piece, index: int, start: int, end: int) -> None:
        if end > start:
            self.pieces.append((piece, index, start, end))

    def _from_event(self, i: int) -> tuple[bool, int]:
        begin, k, other, free = self.begin[i], self.owner[i], self.depends[i], self.before[i]
        self._add(Piece.DEVICE, i, begin, self.end[i])
        if begin <= self.origin:
            return True, -1
        if self.start[k] + self.delay[i] >= begin:
            self._add(Piece.LAUNCH, k, self.start[k], begin)
            return self._before_call(k)
        if other < 0 or self.end[other] + self.lag[i] < begin:
            other = free
        if other >= 0:
            self._add(Piece.HANDOVER, i, self.end[other], begin)
        return True, other

    def _from_call(self, k: int) -> tuple[bool, int]:
        waited = self.blocks[k]
        if waited >= 0 and self.end[waited] + self.tail[k] >= self.returned[k]:
            self._add(Piece.HANDOVER, waited, self.end[waited], self.returned[k])
            return True, waited
        self._add(Piece.HOST, k, self.start[k], self.returned[k])
        return self._before_call(k)

    def _before_call(self, k: int) -> tuple[bool, int]:
        """The host work before a call, back to the return of the one before."""
        if k == 0 or self.start[k] <= self.origin:
            return False, -1
        self._add(Piece.HOST, k, self.returned[k - 1], self.start[k])
        return False, k - 1


def _before_on_stream(model: Model, found: Timeline) -> IntArray:
    """The event before each one on its stream that still exists; -1: none."""
    previous = np.full(model.stream.size, -1, dtype=np.int64)
    left = np.flatnonzero(found.kept)
    if not left.size:
        return previous
    order = left[np.argsort(model.stream[left], kind="stable")]
    same = np.append(False, model.stream[order][1:] == model.stream[order][:-1])
    previous[order[same]] = order[np.flatnonzero(same) - 1]
    return previous
