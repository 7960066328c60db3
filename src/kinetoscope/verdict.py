"""The answer in one line: which class limits the step, whether the program is healthy, and why."""

from __future__ import annotations

from collections.abc import Sequence

from kinetoscope.analysis import Analysis
from kinetoscope.result import BottleneckClass, Budget, Finding, Verdict
from kinetoscope.result.finding import SEVERITIES
from kinetoscope.trace.job import Job
from kinetoscope.units import duration, percent

_CLEAR_LEAD = 0.15
_MEMORY_KERNELS = 0.67
"""Above this share of kernel time, bandwidth is what limits the device, not arithmetic."""

_BUSY_ENOUGH = 0.85
"""Share of the step in which a healthy device does useful work."""


def decide(
    analysis: Analysis, lines: Sequence[Budget], findings: Sequence[Finding]
) -> Verdict:
    """Decide the class by the budget (RULES.md, Appendix C), with what the findings prove."""
    if analysis.coverage.device_missing:
        return Verdict(
            "undetermined",
            healthy=False,
            confidence=0.9,
            sentence=(
                f"The device timeline is missing: {analysis.coverage.launches:,} launches, "
                f"{analysis.coverage.launches_seen:,} with a device event. "
                "Record again with device activity."
            ),
        )
    scores = class_scores(lines)
    leak = next((f for f in findings if f.gain.basis == "none" and f.severity == "critical"), None)
    bottleneck, lead = _winner(scores)
    healthy = _healthy(scores, findings, bottleneck)
    if leak is not None and leak.class_ != "quality" and _nothing_else(findings, leak):
        return Verdict(
            leak.class_,
            healthy=False,
            confidence=leak.confidence,
            sentence=leak.message,
        )
    confidence = _confidence(analysis, lead)
    if _unknown(lines):
        return Verdict(
            "undetermined",
            healthy=False,
            confidence=confidence,
            sentence="Most of the step is time that the recording does not explain.",
        )
    return Verdict(
        bottleneck,
        healthy=healthy,
        confidence=confidence,
        sentence=_sentence(bottleneck, healthy, lines, analysis),
    )


def class_scores(lines: Sequence[Budget]) -> dict[str, float]:
    """Share of the step of each class; kernel time counts as one class of the two.

    Kernels limited by bandwidth and kernels limited by arithmetic are both useful work: their
    sum competes with the other classes, and the larger kind then names it.
    """
    scores = dict.fromkeys(
        ("compute", "memory", "data_loading", "communication", "framework"), 0.0
    )
    arithmetic = bandwidth = 0.0
    for line in lines:
        if "limited by memory" in line.label:
            bandwidth += line.share
        elif line.class_ == "compute":
            arithmetic += line.share
        elif line.class_ != "unattributed":
            scores[line.class_] += line.share
    limited = "memory" if bandwidth > _MEMORY_KERNELS * (arithmetic + bandwidth) else "compute"
    scores[limited] += arithmetic + bandwidth
    return scores


def _winner(scores: dict[str, float]) -> tuple[BottleneckClass, float]:
    """The largest class and its lead over the second."""
    order = sorted(scores, key=lambda name: -scores[name])
    return order[0], scores[order[0]] - scores[order[1]]  # type: ignore[return-value]


def _healthy(scores: dict[str, float], findings: Sequence[Finding], bottleneck: str) -> bool:
    medium = SEVERITIES.index("medium")
    worth_it = [
        f for f in findings if f.class_ != "quality" and SEVERITIES.index(f.severity) <= medium
    ]
    useful = scores["compute"] + (scores["memory"] if bottleneck == "memory" else 0.0)
    return not worth_it and useful >= _BUSY_ENOUGH


def _nothing_else(findings: Sequence[Finding], leak: Finding) -> bool:
    high = SEVERITIES.index("high")
    return not any(
        SEVERITIES.index(f.severity) <= high and f.gain.basis != "none" for f in findings
    )


def _unknown(lines: Sequence[Budget]) -> bool:
    return sum(line.share for line in lines if line.class_ == "unattributed") > 0.5


def _confidence(analysis: Analysis, lead: float) -> float:
    """Clear lead, complete device timeline, several steps, narrow step bracket."""
    step = analysis.step_time
    width = (step.high - step.low) / max(step.mid, 1)
    value = 0.95
    value -= 0.25 * max(0.0, _CLEAR_LEAD - lead) / _CLEAR_LEAD
    value -= min(0.2, 0.1 * width)
    value -= 0.0 if analysis.coverage.complete else 0.2
    value -= 0.0 if analysis.trace.steps.count >= 3 else 0.1
    return round(max(value, 0.1), 2)


_WAITS = {
    "data_loading": "The device waits for input {share} of the step: {label}.",
    "communication": "Communication that nothing hides takes {share} of the step: {label}.",
    "framework": "The device waits for the host {share} of the step: {label}.",
    "memory": "Moving data takes {share} of the step: {label}.",
    "compute": "The device computes {share} of the step: {label}.",
}


def _sentence(
    bottleneck: BottleneckClass, healthy: bool, lines: Sequence[Budget], analysis: Analysis
) -> str:
    mine = [line for line in lines if line.class_ == bottleneck]
    kernels = bottleneck in ("compute", "memory")
    share = class_scores(lines)[bottleneck]
    label = mine[0].label if mine else "nothing stands out"
    text = _WAITS[bottleneck].format(share=percent(share), label=label)
    if analysis.device is None:
        text = text.replace("The device", "The program")
    if healthy and kernels:
        text += " Nothing found is worth a fix."
    return text


def notes_for(analysis: Analysis, job: Job) -> tuple[str, ...]:
    """What a reader should know about the recording before trusting the numbers."""
    notes = []
    step, times = analysis.step_time, analysis.times
    if step.mid < 0.9 * analysis.step_ns:
        notes.append(
            f"Profiling slowed the host: the step was recorded at {duration(analysis.step_ns)}, "
            f"without the profiler it takes about {duration(step.mid)}. "
            "Give the true time with --real-step-ms to narrow all ranges."
        )
    if times.orphan_rows.size > 0.05 * max(times.device_rows.size, 1):
        share = times.orphan_rows.size / times.device_rows.size
        notes.append(
            f"{percent(share)} of the device events were launched before the recorded "
            "steps; they count for the device's time, not for the steps' work."
        )
    if not analysis.coverage.complete and analysis.coverage.launches:
        notes.append(
            f"Only {percent(analysis.coverage.ratio)} of the launches have a device "
            "event: statements about idle time are uncertain."
        )
    if analysis.device is None and analysis.coverage.launches == 0:
        notes.append("No device activity was recorded: the diagnosis speaks of the host alone.")
    world = analysis.trace.header.world_size
    if world and world > len(job.traces):
        notes.append(
            f"{len(job.traces)} of {world} ranks were given: waiting for a peer and a slow "
            "network cannot be told apart."
        )
    notes.extend(f"{path}: skipped, {reason}" for path, reason in job.skipped)
    return tuple(notes)
