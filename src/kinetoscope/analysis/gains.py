"""A gain that remembers how it was found, so that fixes can be replayed together."""

from __future__ import annotations

from collections.abc import Mapping

from kinetoscope.replay import Change
from kinetoscope.result import Gain

LOW, MID, HIGH = range(3)

Triple = tuple[Change, Change, Change]
"""A change at its most cautious, at its most likely, and at its best."""

Changes = Mapping[int, Triple]
"""Changes of ranks, by position in `Analysis.ranks`."""


class ReplayedGain(Gain, frozen=True, eq=False, kw_only=True):
    """A gain with the changes that were replayed for it.

    Attributes:
        changes: of each rank that changes.
        replayed: low, mid and high as the replay gave them; a rule may know more and state
            others.
        together: whether the ranks were replayed together.
    """

    changes: Changes
    replayed: tuple[float, float, float]
    together: bool = False

    def stated(self) -> Gain:
        """The gain alone, as a result holds it."""
        return Gain(self.low, self.mid, self.high, self.basis, self.unit)
