"""What our own capture wrote into a trace, next to torch's events: the sidecar.

Every field may be missing: a program can end in any phase. A sidecar that does not have this
shape was edited or written by a newer version and counts as not there.
"""

from __future__ import annotations

from typing import Any

import msgspec

KEY = "kinetoscope"
"""Top-level key of the trace file."""


class Baseline(msgspec.Struct, frozen=True):
    """Steps without a profiler; `low_ns` to `high_ns` is their own spread.

    `process_cpu_ns` is processor time of all the process's threads in a step.
    """

    steps: int
    step_ns: int
    low_ns: int
    high_ns: int
    process_cpu_ns: int = 0


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
