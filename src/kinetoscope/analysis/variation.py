"""The spread of the steps, as a part of the result and in words."""

from __future__ import annotations

from kinetoscope.analysis.core import Analysis
from kinetoscope.metrics.activity import Cause
from kinetoscope.metrics.budget import IDLE_LINES
from kinetoscope.metrics.variation import SlowStep, step_variation
from kinetoscope.result import SlowStepInfo, StepVariation
from kinetoscope.result.vocabulary import BudgetClass
from kinetoscope.units import duration, plural, times

_DEVICE: dict[str, tuple[BudgetClass, str]] = {
    "kernels": ("compute", "kernels"),
    "collectives": ("communication", "collectives on the device"),
    "copies": ("memory", "copies"),
}
_REASONS = {
    "clocks": "the same kernels all ran slower, so the device's clock was lower or it was shared",
    "host_contention": "the same launches all took longer, so something else used the host's cores",
}
_WORTH_SAYING = 0.05
"""Share of all time that the slow steps take more than usual, below which nobody needs to know."""
_NAMED = 3
"""Slow steps that are named one by one."""


def variation(analysis: Analysis) -> StepVariation | None:
    """Return how the steady steps differ; None when there are too few to tell."""
    found = step_variation(analysis.trace, analysis.times, analysis.activity)
    if found is None:
        return None
    return StepVariation(
        steps=int(found.ns.size),
        min_ns=int(found.ns.min()),
        usual_ns=found.usual_ns,
        max_ns=int(found.ns.max()),
        coefficient_ratio=round(float(found.ns.std() / max(found.ns.mean(), 1)), 4),
        every=found.every,
        slow=tuple(_info(step) for step in found.slow),
    )


def _info(step: SlowStep) -> SlowStepInfo:
    class_, label = _part(step)
    return SlowStepInfo(
        step=step.step,
        ns=step.ns,
        class_=class_,
        label=label,
        grew_ns=step.grew_ns,
        reason=step.reason,
    )


def _part(step: SlowStep) -> tuple[BudgetClass, str]:
    if step.cause is not None:
        return IDLE_LINES[step.cause]
    if step.device is not None:
        return _DEVICE[step.device]
    return "unattributed", ""


# ---- in words --------------------------------------------------------------------------------


def variation_notes(found: StepVariation | None) -> list[str]:
    """Say which steps were slow, how regularly, and what grew in them."""
    if found is None or _excess(found) < _WORTH_SAYING:
        return []
    if found.every is not None:
        return [_regular(found)]
    shown = sorted(found.slow, key=lambda s: -s.ns)[:_NAMED]
    lines = [_one(found, step) for step in shown]
    if len(found.slow) > _NAMED:
        lines[-1] += (
            f" {plural(len(found.slow) - _NAMED, 'more step was', 'more steps were')} slow."
        )
    return lines


def _excess(found: StepVariation) -> float:
    """Time that the slow steps take more than usual, as a share of all steps."""
    more = sum(step.ns - found.usual_ns for step in found.slow)
    return more / max(found.steps * found.usual_ns + more, 1)


def _regular(found: StepVariation) -> str:
    longest = max(found.slow, key=lambda s: s.grew_ns)
    text = (
        f"Every {found.every}. step is slow: {duration(longest.ns)} instead of "
        f"{duration(found.usual_ns)}{_grew(longest)}."
    )
    if longest.label == IDLE_LINES[Cause.LOADER][1]:
        text += f" {found.every} workers that are all too slow, or an epoch this short, do that."
    return text


def _one(found: StepVariation, step: SlowStepInfo) -> str:
    factor = times(step.ns / max(found.usual_ns, 1))
    return (
        f"Step {step.step + 1} took {duration(step.ns)}, {factor} the usual "
        f"{duration(found.usual_ns)}{_grew(step)}."
    )


def _grew(step: SlowStepInfo) -> str:
    if step.reason:
        return f": {_REASONS[step.reason]}"
    if not step.label:
        return "; nothing that was recorded explains it"
    return f": {step.label} took {duration(step.grew_ns)} more"
