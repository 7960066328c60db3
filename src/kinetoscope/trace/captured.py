"""What our own capture wrote into a trace, next to torch's events: the sidecar.

Every field may be missing: a program can end in any phase. A sidecar that does not have this
shape was edited or written by a newer version and counts as not there.
"""

from __future__ import annotations

from typing import Any

import msgspec

KEY = "kinetoscope"
"""Top-level key of the trace file."""


_OTHER = 0.5
"""Below this part of the other half's page faults a half has another number of them."""
_FAULT_NS = (500, 10_000)
"""A page fault with the zeroing of its page takes half a microsecond, in a virtual machine 2 to
8 µs; no fault without a disk takes longer than ten."""
_NOTABLE = 0.02
"""So much of a step must page faults take to be why steps differ."""


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


def changed_faults_ns(before: Half, after: Half) -> int:
    """What page faults cost a step of the half that has far more of them, ns.

    The C library gives freed memory back to the system when it lies at the end of its heap. What a
    window leaves there ends that, or begins it. Never more than so many faults can take: the pace
    of a machine changes for other reasons, too.

    Returns:
        0 where faults are not why the halves differ: both have about as many, the half with fewer
        is not quicker, or they take too little, by their number and by the kernel's time.
    """
    if before.minor_faults is None or after.minor_faults is None:
        return 0
    few, many = sorted((after, before), key=lambda half: half.minor_faults or 0)
    faults = (many.minor_faults or 0) - (few.minor_faults or 0)
    if (few.minor_faults or 0) >= _OTHER * (many.minor_faults or 0):
        return 0
    least, most = (faults * each for each in _FAULT_NS)
    kernel = (many.system_cpu_ns or 0) - (few.system_cpu_ns or 0)
    cost = min(many.step_ns - few.step_ns, most)
    notable = min(cost, max(least, kernel)) > _NOTABLE * before.step_ns
    return cost if notable else 0


class Baseline(msgspec.Struct, frozen=True):
    """Steps without a profiler; `low_ns` to `high_ns` is their own spread.

    `process_cpu_ns` is processor time of all the process's threads in a step, `host_median_ns` the
    median of the steps; 0 where not known.
    """

    steps: int
    step_ns: int
    low_ns: int
    high_ns: int
    process_cpu_ns: int = 0
    host_median_ns: int = 0
    halves: list[Half] = []

    @property
    def ended_faults_ns(self) -> int:
        """What page faults cost a step that ended while it was recorded, ns; 0 without any.

        The stated step time has them, and part of the trace or all of it has not.
        """
        if len(self.halves) < 2:
            return 0
        before, after = self.halves[0], self.halves[-1]
        ended = (after.minor_faults or 0) < (before.minor_faults or 0)
        return changed_faults_ns(before, after) if ended else 0


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
