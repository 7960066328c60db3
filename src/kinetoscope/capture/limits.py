"""When a phase ends: after its steps, or when they take far too long.

A program may become a hundred times slower in the middle of a phase (an evaluation, a slow disk).
What a phase may take is a share of the budget, or twice what was planned. On several ranks the
leading one decides that a phase is late and at which step it ends, so that all end it there.
"""

from __future__ import annotations

import time

from kinetoscope.capture.ranks import MARGIN_STEPS, Agreement

LABELS = {
    "light": "light window",
    "full": "full window",
    "lines": "step that notes lines",
    "samples": "phase of samples",
    "second": "second baseline",
}
"""Names of phases for people, where they differ."""

INTERRUPTED = ("light", "full", "lines")
"""Phases that cost the program something: they end when no step comes for long."""
MISSED = ("baseline", "light", "full")
FEW = 5
"""Fewer steps than this of such a phase are told."""


class Limit:
    """The end of the phase that is active.

    Attributes:
        until: index of the step boundary at which it ends.
        longest_s: seconds after which it ends before that.
    """

    def __init__(self, agreement: Agreement) -> None:
        self._agreement = agreement
        self._phase = ""
        self._starts = 0
        self.longest_s = 0.0
        self._deadline = 0.0
        self._last = 0.0
        self._forgiven = False  # one pause does not end a phase, but slow steps do
        self._late_at: int | None = None
        self._extended = 0
        self.until = 0

    def begin(self, phase: str, starts: int, until: int, longest_s: float) -> None:
        """A phase begins; it records from the boundary `starts` on."""
        self._phase, self._starts, self.until, self._extended = phase, starts, until, 0
        self.longest_s = longest_s
        self._start()

    def done(self, index: int) -> int:
        """Complete steps of the phase at this boundary."""
        return max(index - self._starts, 0)

    def extend(self, left_out: int) -> None:
        """The window begins only now, after fewer steps of preparation than planned."""
        self.until -= left_out
        self._starts -= left_out
        self._extended += 1
        self._start()

    def late(self, index: int) -> bool:
        """Does the phase end at this boundary because its time is over?"""
        now = time.perf_counter()
        took, self._last = now - self._last, now
        if now < self._deadline:
            return False
        if took > 0.5 * self.longest_s and not self._forgiven:
            self._forgiven, self._deadline = True, self._deadline + took
            return False
        if self._late_at is None:
            self._late_at = self._agreed(index)
        return self._late_at is not None and index >= self._late_at

    def _start(self) -> None:
        self._last = time.perf_counter()
        self._deadline = self._last + self.longest_s
        self._late_at, self._forgiven = None, False

    def _agreed(self, index: int) -> int | None:
        """The boundary at which all ranks end the phase; None while nobody said it."""
        if not self._agreement.possible:
            return index
        about = f"late/{self._phase}/{self._extended}"
        if self._agreement.leads:
            self._agreement.publish({"index": index + MARGIN_STEPS}, about)
            return index + MARGIN_STEPS
        said = self._agreement.ask(about)
        return int(said["index"]) if said else None
