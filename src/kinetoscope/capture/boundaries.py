"""Which of the things that repeat in a program is its step."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

from kinetoscope.capture.plan import is_steady

RANKED = ("user", "optimizer", "loader", "backward", "graph", "module")
"""Kinds of marks. An earlier kind is trusted more, as soon as it was seen a few times."""

_KEPT = 64
_LEAST = {"user": 2}
"""Marks that are needed before a kind counts."""
_USUAL = 4
_CALLS = 8
_ACCUMULATED = 130
"""More batches than this are hardly accumulated before an optimizer step."""
_OUTER = 64
"""A mark that is so many times rarer than the most frequent one of its kind is no step."""

Key = tuple[str, int]


@dataclass
class Marks:
    """The times at which one mark was seen, in seconds.

    Attributes:
        label: what the mark is, for people: `AdamW.step`, `DataLoader`.
        thread: identifier of the thread that makes the marks.
    """

    kind: str
    label: str
    thread: int
    count: int = 0
    at: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))

    @property
    def periods(self) -> list[float]:
        """Distances of the last marks, seconds."""
        return [b - a for a, b in pairwise(self.at)]


class StepFinder:
    """Collects marks and chooses the one that stands for the step."""

    def __init__(self) -> None:
        self.marks: dict[Key, Marks] = {}
        self.chosen: Key | None = None

    def note(self, key: Key, label: str, thread: int, now: float) -> bool:
        """Count one mark; True when it is one of the chosen kind and object."""
        marks = self.marks.get(key)
        if marks is None:
            marks = self.marks[key] = Marks(key[0], label, thread)
            self.chosen = None
        marks.count += 1
        marks.at.append(now)
        # Early counts change the order; later it stands.
        if self.chosen is None or marks.count in (2, 4, 8, 16):
            self.chosen = self.choose()
        return key == self.chosen

    def choose(self) -> Key | None:
        """The outermost regular mark of the most trusted kind."""
        for kind in RANKED:
            least = _LEAST.get(kind, _USUAL)
            mine = {k: m for k, m in self.marks.items() if m.kind == kind and m.count >= least}
            if mine:
                return _outermost(mine)
        return None

    @property
    def current(self) -> Marks | None:
        """The marks of the chosen key."""
        return None if self.chosen is None else self.marks[self.chosen]

    def steady(self) -> bool:
        """Are the chosen steps steady, and is it certain that they are the steps?"""
        marks = self.current
        return marks is not None and self._certain(marks) and is_steady(marks.periods)

    def _certain(self, marks: Marks) -> bool:
        """Could a more trusted mark still come?

        With gradient accumulation many batches pass before the first optimizer step, and an
        optimizer that has stepped needs a few more steps to be counted.
        """
        if RANKED.index(marks.kind) <= RANKED.index("optimizer"):
            return True
        kinds = {other.kind for other in self.marks.values()}
        if "optimizer" in kinds or "backward" in kinds:
            return marks.count >= _ACCUMULATED
        return marks.count >= _CALLS


def _outermost(marks: dict[Key, Marks]) -> Key:
    """Two optimizers that take turns, gradient accumulation, nested loaders: the rarest one.

    What is far rarer than the rest (an optimizer that steps once an epoch) is not the step. Of
    equally frequent ones the first seen stands for the step, so that the choice is stable.
    """
    most = max(m.count for m in marks.values())
    common = {k: m for k, m in marks.items() if m.count * _OUTER >= most}
    return min(common, key=lambda k: common[k].count // 2)
