"""One finding: what is wrong, where, how we know, what to do, what it gains."""

from __future__ import annotations

from typing import Literal

import msgspec

from kinetoscope.result.vocabulary import BottleneckClass, FindingClass, GainBasis, Origin

Severity = Literal["critical", "high", "medium", "low", "info"]

SEVERITIES: tuple[Severity, ...] = ("critical", "high", "medium", "low", "info")
"""From worst to least."""


class Evidence(msgspec.Struct, frozen=True):
    """One number behind a finding.

    `unit` is one of ns, bytes, ratio, count, bytes_per_s, flop_per_s, text. A ratio lies in
    0..1 unless its name says otherwise.
    """

    name: str
    value: float | int | str
    unit: str
    origin: Origin = "measured"


class Location(msgspec.Struct, frozen=True):
    """A place in the user's program.

    Attributes:
        exact: True when `line` is the line of the call itself; False when it is the first line
            of the function, as torch's stack events record it.
        count: how many events of the finding lead here.
        snippet: the source line, when the file was at hand.
    """

    file: str | None = None
    line: int | None = None
    function: str | None = None
    module: str | None = None
    exact: bool = False
    count: int = 1
    snippet: str | None = None


class Fix(msgspec.Struct, frozen=True):
    """What to change."""

    summary: str
    snippet: str = ""
    reference: str = ""


class Gain(msgspec.Struct, frozen=True):
    """Expected speed-up of the step if the fix is applied: old step time / new step time."""

    low: float
    mid: float
    high: float
    basis: GainBasis
    unit: Literal["step_speedup"] = "step_speedup"


class Limit(msgspec.Struct, frozen=True):
    """What limits a step: the class, its largest part, and the share of the class in the step."""

    class_: BottleneckClass = msgspec.field(name="class")
    label: str
    share: float


NO_GAIN = Gain(low=1.0, mid=1.0, high=1.0, basis="none")


class Finding(msgspec.Struct, frozen=True):
    """One cause, reported once.

    Attributes:
        remedies: names that `kinetoscope verify --fix` knows for this finding's fix.
        then: what limits the step once the fix is in; None where that was not replayed.
    """

    code: str
    name: str
    class_: FindingClass = msgspec.field(name="class")
    severity: Severity
    confidence: float
    message: str
    evidence: tuple[Evidence, ...] = ()
    locations: tuple[Location, ...] = ()
    fix: Fix = Fix(summary="")
    gain: Gain = NO_GAIN
    rank: int | None = None
    remedies: tuple[str, ...] = ()
    then: Limit | None = None
