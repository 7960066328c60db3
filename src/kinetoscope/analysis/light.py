"""The light window's device times: what the full window's stacks and shapes do not disturb."""

from __future__ import annotations

from typing import Any

from kinetoscope.analysis.budgeting import recorded_lines
from kinetoscope.analysis.core import Analysis


def light_summary(analysis: Analysis) -> dict[str, Any]:
    """Step time as recorded, and the budget lines of work on the device, ns a step."""
    lines = recorded_lines(analysis) if analysis.device is not None else []
    return {
        "step_ns": analysis.step_ns,
        "lines": [
            {"class": line.class_, "label": line.label, "ns": line.ns // analysis.steps}
            for line in lines
            if not line.host
        ],
    }
