"""How the steps of a recording differ from each other."""

from __future__ import annotations

from typing import Literal

import msgspec

from kinetoscope.result.vocabulary import BudgetClass


class SlowStepInfo(msgspec.Struct, frozen=True):
    """A step that took longer than usual.

    Attributes:
        step: its position in the recording, from 0.
        ns: its length as recorded.
        class_, label: the part that grew most; "unattributed" when nothing recorded explains it.
        grew_ns: by how much that part grew.
        reason: the same work took longer: a lower clock of the device, or a host that was busy
            with something else.
    """

    step: int
    ns: int
    class_: BudgetClass = msgspec.field(name="class")
    label: str
    grew_ns: int
    reason: Literal["clocks", "host_contention"] | None = None


class StepVariation(msgspec.Struct, frozen=True):
    """Lengths of the steady steps as recorded, ns.

    Attributes:
        steps: how many there are.
        usual_ns: median of the steps that are not slow.
        coefficient_ratio: standard deviation / mean.
        every: distance of the slow steps when they come back regularly.
        slow: steps of at least 1.3 times the usual length, in order.
    """

    steps: int
    min_ns: int
    usual_ns: int
    max_ns: int
    coefficient_ratio: float
    every: int | None = None
    slow: tuple[SlowStepInfo, ...] = ()
