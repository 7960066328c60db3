"""Steps that are slow again and again: the first of an epoch, the one that writes a checkpoint.

What a step costs then is the mean over whole cycles, from one slow step to another. Pure
arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

_SLOW = 3.0
"""So many times the median is slow."""
_SHARE = 0.1
"""Slow steps that take less of the time than this are scatter."""
_PAUSE = 10.0
_PAUSE_SHARE = 0.5
"""So slow, and so much of the time, that two or one of them are no accident of the machine."""
_SELDOM = 10
"""One slow step of fewer may be one of many."""


@dataclass(frozen=True)
class Rhythm:
    """Where steps are slow.

    Attributes:
        slow: positions of the slow steps; of several in a row the first.
        cycle: steps from one to the next; 0 when they do not come regularly, or came once.
        pause: how much longer than others they take, in the unit of the periods.
    """

    slow: tuple[int, ...] = ()
    cycle: int = 0
    pause: float = 0.0

    @property
    def alone(self) -> bool:
        """Did one long pause come, and nobody knows how often it does?"""
        return len(self.slow) == 1

    def mean(self, periods: Sequence[float]) -> float:
        """Mean over whole cycles; without the pause where it came once."""
        if self.cycle:
            first, last = self.slow[0], self.slow[-1]
            return sum(periods[first:last]) / (last - first)
        total = sum(periods) - (self.pause if self.alone else 0.0)
        return total / max(len(periods), 1)

    def cycles(self, periods: Sequence[float]) -> list[float]:
        """Mean period of each whole cycle; [] without any."""
        if not self.cycle:
            return []
        return [sum(periods[a:b]) / (b - a) for a, b in pairwise(self.slow)]


def rhythm(periods: Sequence[float]) -> Rhythm:
    """Find the slow steps among some that follow each other."""
    usual = median(periods) if len(periods) > 2 else 0.0
    every = [i for i, period in enumerate(periods) if period > _SLOW * usual > 0]
    share = sum(periods[i] for i in every) / max(sum(periods), 1e-12)
    if share < _SHARE:
        return Rhythm()
    slow = tuple(i for i in every if i - 1 not in every)
    pause = (sum(periods[i] for i in every) - usual * len(every)) / len(slow)
    if len(slow) < 3:
        often = len(slow) == 1 and len(periods) < _SELDOM
        sure = share >= _PAUSE_SHARE and pause > _PAUSE * usual and not often
        return Rhythm(slow, slow[-1] - slow[0], pause) if sure else Rhythm()
    gaps = [b - a for a, b in pairwise(slow)]
    regular = max(gaps) - min(gaps) <= max(1, 0.1 * median(gaps))
    return Rhythm(slow, round(sum(gaps) / len(gaps)), pause) if regular else Rhythm()


def whole(steps: int, cycle: int, most: int) -> int:
    """So many steps, made up to whole cycles where that stays below `most`."""
    up = -(-steps // cycle) * cycle if cycle else steps
    return up if up <= most else steps
