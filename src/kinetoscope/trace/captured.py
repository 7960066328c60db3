"""What our own capture wrote into a trace, next to torch's events: the sidecar.

Every field may be missing: a program can end in any phase. A sidecar that does not have this
shape was edited or written by a newer version and counts as not there.
"""

from __future__ import annotations

from typing import Any

import msgspec

KEY = "kinetoscope"
"""Top-level key of the trace file."""


_ENDED = 0.5
"""Faults after the windows over those before, below which they ended by themselves."""


class Half(msgspec.Struct, frozen=True):
    """What was timed in one piece, before the windows or after them; all per step.

    `minor_faults` are page faults of the thread that makes the steps, `system_cpu_ns` what that
    thread spent in the kernel; None where the system does not count them.
    """

    steps: int
    step_ns: int
    process_cpu_ns: int = 0
    minor_faults: int | None = None
    system_cpu_ns: int | None = None


class Baseline(msgspec.Struct, frozen=True):
    """Steps without a profiler; `low_ns` to `high_ns` is their own spread.

    `process_cpu_ns` is processor time of all the process's threads in a step.
    """

    steps: int
    step_ns: int
    low_ns: int
    high_ns: int
    process_cpu_ns: int = 0
    halves: list[Half] = []

    @property
    def ended_faults_ns(self) -> int:
        """What page faults cost a step that ended while it was recorded, ns; 0 without any.

        The stated step time has them, and part of the trace or all of it has not.
        """
        if len(self.halves) < 2:
            return 0
        before, after = self.halves[0], self.halves[-1]
        ended = (after.minor_faults or 0) < _ENDED * (before.minor_faults or 0)
        return max(before.step_ns - after.step_ns, 0) if ended else 0


class Recorded(msgspec.Struct, frozen=True):
    """One profiled window; `step_ns` by the trace itself, `host_step_ns` by the host clock."""

    name: str
    steps: int
    host_step_ns: int
    step_ns: int | None = None
    pause_ns: int = 0


class Calls(msgspec.Struct, frozen=True):
    """Start of each call out of a user's frame (differences, ns) and the line that called."""

    at: list[int] = []
    line: list[int] = []


Sampled = tuple[str, int, str, int, int]
"""File, first line of the function, function, line, samples."""


class Lines(msgspec.Struct, frozen=True):
    """Where exact lines come from; see `kinetoscope.analysis.recorded_lines`."""

    calls: Calls = Calls()
    operators: dict[str, dict[str, list[int]]] = {}
    samples: list[Sampled] = []
    workers: list[Sampled] = []


class StepFacts(msgspec.Struct, frozen=True):
    """What marked the steps."""

    source: str | None = None
    label: str | None = None
    seen: int = 0
    steady: bool = False


class BudgetLine(msgspec.Struct, frozen=True):
    """A line of the light window's budget, of work on the device."""

    class_: str = msgspec.field(name="class")
    label: str
    ns: int


class Light(msgspec.Struct, frozen=True):
    """Device times of a step, from the window that disturbs least."""

    step_ns: int
    lines: list[BudgetLine] = []


class Sidecar(msgspec.Struct, frozen=True):
    """The whole sidecar."""

    version: int
    steps: StepFacts = StepFacts()
    baseline: Baseline | None = None
    windows: list[Recorded] = []
    light: Light | None = None
    lines: Lines = Lines()
    facts: dict[str, Any] = {}
    problems: list[str] = []

    @property
    def torch(self) -> str | None:
        """Version of torch that the program ran with."""
        machine = self.facts.get("machine")
        version = machine.get("torch") if isinstance(machine, dict) else None
        return version if isinstance(version, str) else None


def sidecar_of(metadata: dict[str, Any]) -> Sidecar | None:
    """The sidecar among a header's metadata; None when there is none that can be used."""
    value = metadata.get(KEY)
    if not isinstance(value, dict):
        return None
    try:
        found = msgspec.convert({k: v for k, v in value.items() if v != {}}, Sidecar)
    except msgspec.ValidationError:
        return None
    return found if found.version == 1 else None
