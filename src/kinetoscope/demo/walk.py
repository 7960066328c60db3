"""What the demo shows, however it was made: two recordings of a program, before and after a fix."""

from __future__ import annotations

import re
from collections.abc import Callable
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
        before: the program as it is.
        change: from the advised number of workers to the change, as lines of a diff.
        after: from the same number to the changed program's run; may take a while.
    """

    how: str
    program: Path
    before: Run
    change: Callable[[int], tuple[str, ...]]
    after: Callable[[int], Run]


def predicted(diagnosis: Diagnosis) -> Finding | None:
    """Return the finding with the best expected gain that the change of the demo answers."""
    timed = [f for f in diagnosis.findings if f.gain.basis != "none" and f.class_ == "data_loading"]
    return max(timed, key=lambda f: f.gain.mid, default=None)


_WORKERS = re.compile(r"num_workers=(\d+)")
_USUAL = 4


def advised_workers(finding: Finding | None) -> int:
    """Return how many workers the finding's fix asks for; 4 when it names no number."""
    found = _WORKERS.search(finding.fix.snippet or "") if finding else None
    return int(found[1]) if found else _USUAL


def comparison(before: Run, after: Run, finding: Finding | None) -> str:
    """Return how the measured gain compares with the predicted range, in one or two sentences."""
    speedup = before.step_ms / after.step_ms
    measured = (
        f"Measured without the profiler: {units.duration(before.step_ns)} a step before, "
        f"{units.duration(after.step_ns)} after, {units.times(speedup)} faster."
    )
    if finding is None:
        return f"{measured} The diagnosis predicted no gain."
    gain = finding.gain
    span = f"{units.times(gain.low)} to {units.times(gain.high)}"
    if gain.low <= speedup <= gain.high:
        word = "inside the range that"
    elif speedup > gain.high:
        word = "more than"
    else:
        word = "less than"
    return f"{measured} That is {word} {finding.code} predicted: {span}."
