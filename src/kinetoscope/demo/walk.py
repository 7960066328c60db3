"""What the demo shows, however it was made: two recordings of a program, before and after a fix."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kinetoscope import units
from kinetoscope.result import Diagnosis, Finding


@dataclass(frozen=True)
class Run:
    """One recording, and how long a step of the same program takes without the profiler.

    Attributes:
        step_ms: the step without the profiler, milliseconds.
        captured: the recording holds that time itself, with its spread.
    """

    trace: Path
    step_ms: float
    captured: bool = False

    @property
    def step_ns(self) -> float:
        """The step time without the profiler, nanoseconds."""
        return self.step_ms * 1e6


@dataclass(frozen=True)
class Walk:
    """One walk round the loop.

    Attributes:
        how: where the recordings come from, one sentence.
        program: the source of the program.
        change: the change that makes `after` from `before`, as lines of a diff.
    """

    how: str
    program: Path
    change: tuple[str, ...]
    before: Run
    after: Run

    @property
    def speedup(self) -> float:
        """Measured: step time before the change / after it."""
        return self.before.step_ms / self.after.step_ms


def predicted(diagnosis: Diagnosis) -> Finding | None:
    """Return the finding with the best expected gain that the change of the demo answers."""
    timed = [f for f in diagnosis.findings if f.gain.basis != "none" and f.class_ == "data_loading"]
    return max(timed, key=lambda f: f.gain.mid, default=None)


def comparison(walk: Walk, finding: Finding | None) -> str:
    """Return how the measured gain compares with the predicted range, in one or two sentences."""
    measured = (
        f"Measured without the profiler: {units.duration(walk.before.step_ns)} a step before, "
        f"{units.duration(walk.after.step_ns)} after, {units.times(walk.speedup)} faster."
    )
    if finding is None:
        return f"{measured} The diagnosis predicted no gain."
    gain = finding.gain
    span = f"{units.times(gain.low)} to {units.times(gain.high)}"
    if gain.low <= walk.speedup <= gain.high:
        word = "inside the range that"
    elif walk.speedup > gain.high:
        word = "more than"
    else:
        word = "less than"
    return f"{measured} That is {word} {finding.code} predicted: {span}."
