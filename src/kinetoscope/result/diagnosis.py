"""The diagnosis of one trace or one job: the document that every output renders."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kinetoscope.result.finding import Finding, Gain
from kinetoscope.result.profile import Profile
from kinetoscope.result.variation import StepVariation
from kinetoscope.result.vocabulary import (
    BottleneckClass,
    BudgetClass,
    RuleStatus,
    StepSource,
)

SCHEMA_VERSION = 1


class DeviceInfo(msgspec.Struct, frozen=True):
    """An accelerator, as the trace's header names it."""

    id: int
    name: str | None = None


class Damage(msgspec.Struct, frozen=True):
    """Something odd in the input that was repaired, skipped or lost, and how often.

    Attributes:
        lossy: True when events were lost or a value could not be trusted; only then is the
            input called damaged (exit code 4).
    """

    kind: str
    count: int
    detail: str = ""
    lossy: bool = False


class InputInfo(msgspec.Struct, frozen=True):
    """One analysed file."""

    path: str
    kind: str
    rank: int | None
    events: int
    devices: tuple[DeviceInfo, ...] = ()
    torch: str | None = None
    damage: tuple[Damage, ...] = ()


class Verdict(msgspec.Struct, frozen=True):
    """The answer in one line."""

    bottleneck: BottleneckClass
    healthy: bool
    confidence: float
    sentence: str


class NsRange(msgspec.Struct, frozen=True):
    """A time with its bracket, integer nanoseconds."""

    low: int
    mid: int
    high: int


class StepTime(msgspec.Struct, frozen=True):
    """How long a step takes.

    Attributes:
        time_ns: the bracket of the true, unprofiled step time.
        recorded_ns: the step time as recorded, profiling overhead included.
        variation: how the steps differ; None for fewer than five.
    """

    count: int
    source: StepSource
    time_ns: NsRange
    recorded_ns: int
    variation: StepVariation | None = None


class WindowInfo(msgspec.Struct, frozen=True):
    """One profiled window of our own capture.

    Attributes:
        step_ns: step time inside the window.
        overhead: step time in the window / without a profiler - 1; None when not measured.
    """

    name: str
    steps: int
    step_ns: int
    overhead: float | None = None


class CaptureInfo(msgspec.Struct, frozen=True):
    """How our own capture recorded, and what it saw of the program and the machine.

    Attributes:
        step_source: what marked the steps: optimizer, loader, backward, graph, module, user.
        step_label: the same for people, such as `AdamW.step`.
        baseline_steps: steps that were timed without a profiler; 0 when there was no time.
        baseline_ns: their step time, with its own spread.
        baseline_cpu_ns: processor time of the process in a step, all threads together.
        facts: versions, settings, objects, utilisation; see docs/capture.md.
        problems: what went wrong or is missing, in words.
    """

    step_source: str | None
    step_label: str | None
    steady: bool
    baseline_steps: int = 0
    baseline_ns: NsRange | None = None
    baseline_cpu_ns: int = 0
    windows: tuple[WindowInfo, ...] = ()
    facts: dict[str, Any] = {}
    problems: tuple[str, ...] = ()


class Budget(msgspec.Struct, frozen=True):
    """One line of the time budget; the lines sum to `StepTime.time_ns.mid`."""

    class_: BudgetClass = msgspec.field(name="class")
    label: str
    ns: int
    share: float


class DeviceTimeline(msgspec.Struct, frozen=True):
    """Where the time of one device went over the whole trace, exact integer nanoseconds.

    `busy` is the union of kernels, copies and memsets; `compute` the union of kernels that are
    not communication and of memsets; `exposed_comm` communication minus compute;
    `exposed_memcpy` copies minus compute minus communication; `idle` is span minus busy.
    """

    rank: int
    device: int
    span_ns: int
    busy_ns: int
    compute_ns: int
    comm_ns: int
    exposed_comm_ns: int
    memcpy_ns: int
    exposed_memcpy_ns: int
    idle_ns: int


class Together(msgspec.Struct, frozen=True):
    """The fixes of several findings at once, replayed together: what two of them explain counts
    once.

    Attributes:
        codes: of the findings, in their order in the result.
    """

    codes: tuple[str, ...]
    gain: Gain


class Utilisation(msgspec.Struct, frozen=True):
    """How much of a device's arithmetic one rank uses.

    Only matrix products, convolutions, attention and recurrent networks count, as is the custom.

    Attributes:
        rank: the rank that it speaks of, the one that sets the pace.
        device: index of its busiest device.
        name: the device, as the table of peak rates calls it.
        mfu: model FLOP utilisation: time that a step's FLOP would take at the data sheet's dense
            rate of the units that did them, over the likely step time. Work that checkpointing
            does again does not count.
        hfu: the same with that work.
        flop_per_step: FLOP that `mfu` counts.
        coverage: share of kernel time whose FLOP are known.
        lower_bound: the FLOP of a fifth or more of the matrix kernels' time are not known, so both
            ratios are at least what they say.
    """

    rank: int
    device: int
    name: str
    mfu: float
    hfu: float
    flop_per_step: int
    coverage: float
    lower_bound: bool = False


class PathShare(msgspec.Struct, frozen=True):
    """Time on the critical path that one operator, kernel or doing of the host takes.

    Attributes:
        class_: as in the budget.
        label: operator or kernel on the device; what the host does, else.
        where: who is busy with it.
    """

    class_: BudgetClass = msgspec.field(name="class")
    label: str
    where: Literal["host", "device"]
    ns: int


class CriticalPath(msgspec.Struct, frozen=True):
    """The longest chain of waiting through the median step, without the profiler's likely cost.

    Making anything else faster gains nothing.

    Attributes:
        step_ns: length of that step in the replay.
        host_ns: part of it that the host is busy with; the rest is the device's.
        parts: the largest, longest first; the small ones are left out.
    """

    step_ns: int
    host_ns: int
    parts: tuple[PathShare, ...]


class RuleOutcome(msgspec.Struct, frozen=True):
    """What one rule said about the trace.

    Attributes:
        reason: why it is silent although something was found, could not look, or failed.
        withheld: what a silent rule found.
        gain: what its fix gains alone, also where another finding explains the same time, or comes
            first; None where nothing was found, or the fix is in place.
    """

    code: str
    status: RuleStatus
    reason: str | None = None
    withheld: str | None = None
    gain: Gain | None = None


class Diagnosis(msgspec.Struct, frozen=True):
    """The whole result document.

    Attributes:
        profile: what comparisons are made of; None in documents of versions that had none.
        together: what the first two, three, ... findings gain together.
        utilisation: share of the device's arithmetic in use; None when it is not known.
        critical_path: of the rank that sets the pace; None without a whole step.
    """

    schema_version: int
    kinetoscope: str
    inputs: tuple[InputInfo, ...]
    verdict: Verdict
    step: StepTime
    budget: tuple[Budget, ...]
    device_timeline: tuple[DeviceTimeline, ...]
    findings: tuple[Finding, ...]
    rules: tuple[RuleOutcome, ...]
    notes: tuple[str, ...] = ()
    capture: CaptureInfo | None = None
    profile: Profile | None = None
    together: tuple[Together, ...] = ()
    utilisation: Utilisation | None = None
    critical_path: CriticalPath | None = None
