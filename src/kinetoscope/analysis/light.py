"""The light window's times: what the full window's stacks and shapes do not disturb."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kinetoscope.analysis.budgeting import recorded_lines
from kinetoscope.analysis.core import Analysis
from kinetoscope.metrics.budget import BANDWIDTH_LABEL, HOST_BANDWIDTH_LABEL, Line
from kinetoscope.trace.captured import Light


def light_summary(analysis: Analysis) -> dict[str, Any]:
    """Step time as recorded, and the budget lines of useful work, ns a step.

    Useful work is what the device does, or what operators do on a host without a device; the
    host's idle causes are left out, because the light window has no stacks to tell them apart.
    """
    lines = recorded_lines(analysis)
    return {
        "step_ns": analysis.step_ns,
        "lines": [
            {"class": line.class_, "label": line.label, "ns": line.ns // analysis.steps}
            for line in lines
            if not line.host
        ],
    }


def with_light(analysis: Analysis, lines: list[Line], light: Light) -> list[Line]:
    """The full window's lines with the light window's times for useful work.

    Shapes, which only the full window has, tell arithmetic from bandwidth: the two share the
    light window's kernel time as they share that of the full one. Without a device, operators
    slow down with the rest of the host; they are scaled as the light window's step is to the
    unprofiled one.
    """
    steps = analysis.steps
    scale = 1.0
    if analysis.device is None and light.step_ns > 0:
        scale = min(analysis.step_time.mid / light.step_ns, 1.0)
    known = {line.label: round(line.ns * scale) * steps for line in light.lines}
    work = sum(ns for label, ns in known.items() if _is_work(light, label))
    full = sum(line.ns for line in lines if not line.host and _kernel(line))
    kept = []
    for line in lines:
        if line.host:
            kept.append(line)
        elif _kernel(line):
            kept.append(replace(line, ns=round(line.ns * work / full)) if full else line)
        else:
            kept.append(replace(line, ns=known.get(line.label, line.ns)))
    return kept


def _kernel(line: Line) -> bool:
    return line.class_ == "compute" or line.label in (BANDWIDTH_LABEL, HOST_BANDWIDTH_LABEL)


def _is_work(light: Light, label: str) -> bool:
    return any(
        line.label == label
        and (line.class_ == "compute" or label in (BANDWIDTH_LABEL, HOST_BANDWIDTH_LABEL))
        for line in light.lines
    )
