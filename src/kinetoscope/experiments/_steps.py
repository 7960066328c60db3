"""Finds the steps of a running program and times them without the profiler.

Three kinds of marks are counted: steps of an optimizer, batches of a DataLoader, outermost calls
of a module. The first of these that a program has marks its steps.

On a device the host runs ahead, so the distance of two marks says little. Every few steps the
device is waited for, at a mark, and the mean step since the last wait counts: one wait in at least
50 ms costs nothing that could be measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

from kinetoscope.experiments._hopeless import Watch

KINDS = ("optimizer", "loader", "module")
WARM_STEPS = 3
LEAST_STEPS = 20
LONGEST_NS = 10_000_000_000
SYNC_NS = 50_000_000
SYNC_STEPS = 4


class EndedError(BaseException):
    """Ends the program when enough steps were seen; no `except Exception` catches it."""


def _unwind() -> None:
    raise EndedError


class StepTimer:
    """Times the steps of a program.

    Args:
        kind: the mark to use; None: the best one that the program has.
        most: steps after which the program is ended although too little time was measured.
        least_ns: time that must be measured before the program is ended.
        patience: marks of a lesser kind to wait through for one of a better kind.
        synchronize: waits for the device; None on a CPU.
        watch: says when a run is too slow to go on; None: it never is.
        end: called at each mark once enough was measured; ends the program by default.
    """

    def __init__(
        self,
        kind: str | None,
        *,
        most: int,
        least_ns: int,
        patience: int = 5,
        synchronize: Callable[[], None] | None = None,
        watch: Watch | None = None,
        end: Callable[[], None] = _unwind,
    ) -> None:
        self.kind = kind
        self.most = most
        self.least_ns = least_ns
        self.patience = patience
        self.synchronize = synchronize
        self.watch = watch
        self.end = end
        self.ended_early = False
        self.marks: dict[str, list[int]] = {name: [] for name in KINDS}
        self.settled: dict[str, list[tuple[int, int]]] = {name: [] for name in KINDS}
        self.on_step: list[Callable[[int], None]] = []

    def mark(self, kind: str) -> None:
        """A step of this kind was completed."""
        now = time.perf_counter_ns()
        marks = self.marks[kind]
        marks.append(now)
        if self.kind not in (None, kind):
            return
        if self.synchronize is not None:
            self._settle(kind, len(marks))
        if self.best() == kind:
            for tell in self.on_step:
                tell(len(marks))
            if self._enough(kind) or self._hopeless(len(marks)):
                self.end()

    def best(self) -> str:
        """The kind that marks the steps, as far as known."""
        if self.kind is not None:
            return self.kind
        return next((name for name in KINDS if len(self.marks[name]) >= 1), KINDS[-1])

    def _settle(self, kind: str, count: int) -> None:
        """Wait for the device now and then, and note when it was done with how many steps."""
        done = self.settled[kind]
        now = time.perf_counter_ns()
        if done and (now - done[-1][0] < SYNC_NS or count - done[-1][1] < SYNC_STEPS):
            return
        assert self.synchronize is not None  # noqa: S101 - the caller asked
        self.synchronize()
        done.append((time.perf_counter_ns(), count))

    def _enough(self, kind: str) -> bool:
        """Enough steps and enough time; a lesser kind waits longer, as a better one may come."""
        marks = self.marks[kind]
        measured = marks[-1] - marks[min(WARM_STEPS, len(marks) - 1)]
        unsure = self.kind is None and kind != KINDS[0]
        factor = self.patience if unsure else 1
        if measured < factor * self.least_ns or len(marks) < factor * LEAST_STEPS + WARM_STEPS:
            return len(marks) >= self.most and measured >= factor * LONGEST_NS
        return True

    def _hopeless(self, count: int) -> bool:
        """Whether a few settled steps say that this run is not worth its time."""
        if self.watch is not None and self.watch.hopeless(count, time.perf_counter_ns):
            self.ended_early = True
        return self.ended_early

    def steady(self) -> tuple[list[int], int]:
        """The periods without the warm-up, ns, and how many were cut off."""
        if self.ended_early and self.watch is not None:
            return self.watch.periods, self.watch.settled_from - 1
        return steady(self.periods())

    def periods(self) -> list[int]:
        """Distances of the marks, ns, the first ones included."""
        kind = self.best()
        done = self.settled[kind]
        if len(done) >= 3:
            return [
                (b[0] - a[0]) // (b[1] - a[1])
                for a, b in pairwise(done)
                for _ in range(b[1] - a[1])
            ]
        marks = self.marks[kind]
        return [b - a for a, b in pairwise(marks)]


def steady(periods: list[int]) -> tuple[list[int], int]:
    """Cut the warm-up off: returns the steady periods and how many were cut.

    The warm-up ends after the last step of the first half that took more than twice as long as
    the steps of the second half usually do.
    """
    if len(periods) < 6:
        return periods[1:] or periods, min(1, len(periods))
    half = len(periods) // 2
    usual = sorted(periods[half:])[(len(periods) - half) // 2]
    slow = [i for i in range(half) if periods[i] > 2 * usual]
    # A slow step that comes back in the second half is part of the program.
    comes_back = sum(p > 2 * usual for p in periods[half:]) > 0
    cut = min(WARM_STEPS, half) if comes_back or not slow else max(slow[-1] + 1, WARM_STEPS)
    return periods[cut:], cut


def condensed(periods: list[int], most: int = 200) -> list[int]:
    """At most so many means of neighbouring steps: the mean stays, and documents stay small."""
    if len(periods) <= most:
        return periods
    edges = [len(periods) * i // most for i in range(most + 1)]
    return [sum(periods[a:b]) // (b - a) for a, b in pairwise(edges)]
