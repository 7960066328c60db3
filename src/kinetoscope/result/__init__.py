"""What Kinetoscope says, as frozen, versioned data. Every output renders only this."""

from __future__ import annotations

from kinetoscope.result.diagnosis import (
    SCHEMA_VERSION,
    Budget,
    CaptureInfo,
    Damage,
    DeviceInfo,
    DeviceTimeline,
    Diagnosis,
    InputInfo,
    NsRange,
    RuleOutcome,
    StepTime,
    Together,
    Utilisation,
    Verdict,
    WindowInfo,
)
from kinetoscope.result.finding import (
    Evidence,
    Finding,
    Fix,
    Gain,
    Limit,
    Location,
    Severity,
)
from kinetoscope.result.variation import SlowStepInfo, StepVariation
from kinetoscope.result.vocabulary import (
    BottleneckClass,
    BudgetClass,
    GainBasis,
    Origin,
    RuleStatus,
    StepSource,
)

__all__ = [
    "SCHEMA_VERSION",
    "BottleneckClass",
    "Budget",
    "BudgetClass",
    "CaptureInfo",
    "Damage",
    "DeviceInfo",
    "DeviceTimeline",
    "Diagnosis",
    "Evidence",
    "Finding",
    "Fix",
    "Gain",
    "GainBasis",
    "InputInfo",
    "Limit",
    "Location",
    "NsRange",
    "Origin",
    "RuleOutcome",
    "RuleStatus",
    "Severity",
    "SlowStepInfo",
    "StepSource",
    "StepTime",
    "StepVariation",
    "Together",
    "Utilisation",
    "Verdict",
    "WindowInfo",
]
