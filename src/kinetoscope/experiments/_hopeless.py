"""Ends a run early that is certainly much slower than the program without the remedy.

A run is measured for a second and twenty steps at least. A remedy with which each step takes
seconds would take the time of all others, and twenty steps say no more than a few.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import median

from kinetoscope.capture.torch_parts import COUNTERS

SLOWER = 3.0
"""Times the usual step from which a run is not worth its time."""
FIRST_STEPS = 3
"""Steps that never count: they compile, capture, and start workers."""
SETTLED_STEPS = 3
WATCHED_STEPS = 24
COMPILING_STEPS = 12
"""Up to this step, one in which torch.compile made a graph does not count, nor do those before it.
By then a function that is compiled for each size has reached the limit of torch (8 graphs), after
which it runs as it is; what still compiles has more to compile in every step."""
GIVEN_UP_FROM = 4
"""Before this step nobody gives up: sizes that change are compiled twice, then once for all."""


def graphs_made() -> int:
    """How many graphs torch.compile has made in this process; 0 where it was never used."""
    counters = COUNTERS.get()
    return int(counters["stats"]["unique_graphs"]) if counters is not None else 0


class Watch:
    """Looks at each step of a run.

    Args:
        usual_ns: mean step of the unchanged program, for the work that a step of this run does.
        least_ns: how long its settled steps must have taken: as long as a run is measured at least.
        give_up_ns: by this time of the clock the steps must have stopped compiling, or the run
            ends.
        synchronize: waits for the device before the first settled step, so that none of them pays
            for what was launched before; None on a CPU. Later ones may end before the device is
            done: then they took even longer.
        graphs: counts the graphs that torch.compile has made.
    """

    def __init__(
        self,
        usual_ns: int,
        least_ns: int,
        give_up_ns: int,
        *,
        synchronize: Callable[[], None] | None = None,
        graphs: Callable[[], int] = graphs_made,
    ) -> None:
        self._limit_ns = SLOWER * usual_ns
        self._least_ns = least_ns
        self._give_up_ns = give_up_ns
        self._synchronize = synchronize
        self._graphs = graphs
        self._known = 0
        self._ends: list[int] = []
        self._over = False
        self.settled_from = 0
        self.compiling = False

    def hopeless(self, step: int, clock: Callable[[], int]) -> bool:
        """Whether the steps since the run settled say enough; `compiling`: it does not settle.

        Args:
            step: how many steps were completed.
            clock: the time now, ns.
        """
        if self._over:
            return False
        made = self._graphs()
        compiled, self._known = made > self._known, made
        if step <= FIRST_STEPS or (compiled and step <= COMPILING_STEPS):
            if self._synchronize is not None:
                self._synchronize()
            now = clock()
            self._ends, self.settled_from = [now], step
            self.compiling = compiled and now > self._give_up_ns and step >= GIVEN_UP_FROM
            return self.compiling
        self._ends.append(clock())
        # Every run makes so many steps; to look at more would slow the measured ones down.
        self._over = step >= WATCHED_STEPS
        return self._slow()

    @property
    def periods(self) -> list[int]:
        """The settled steps, ns."""
        return [b - a for a, b in pairwise(self._ends)]

    def _slow(self) -> bool:
        periods = self.periods
        if len(periods) < SETTLED_STEPS or sum(periods) < self._least_ns:
            return False
        return min(median(periods), sum(periods) / len(periods)) >= self._limit_ns
