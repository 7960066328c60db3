"""The closed vocabularies of the result document."""

from __future__ import annotations

from typing import Literal

BottleneckClass = Literal[
    "compute", "memory", "data_loading", "communication", "framework", "undetermined"
]
"""What limits the step. `framework` is host, launch, Python, synchronisation, compilation."""

BudgetClass = Literal[
    "compute", "memory", "data_loading", "communication", "framework", "unattributed"
]
"""Class of one line of the time budget."""

FindingClass = Literal["compute", "memory", "data_loading", "communication", "framework", "quality"]
"""Class of a finding; `quality` speaks of the recording, not of the program."""

Origin = Literal["measured", "derived", "estimated"]
"""Where a number comes from: read from the trace, computed from it, or modelled."""

GainBasis = Literal["replay", "bound", "measured", "none"]
"""How a gain was found: `bound` is a closed form capped by the next bottleneck."""

RuleStatus = Literal["fired", "silent", "skipped", "errored"]

StepSource = Literal["profiler_step", "annotation", "graph_launch", "periodic", "whole_trace"]
