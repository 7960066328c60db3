"""The answer in one line: which class limits the step, whether the program is healthy, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.budget import BANDWIDTH_LABEL, HOST_BANDWIDTH_LABEL, UNSEEN_LABEL
from kinetoscope.result import BottleneckClass, Budget, Finding, Limit, Verdict
from kinetoscope.result.finding import SEVERITIES
from kinetoscope.units import percent

_CLEAR_LEAD = 0.15
_USEFUL = 0.70
"""From this share of the step on, the device's own work is what limits it."""
_HOST_CERTAIN = 0.4
"""Where all of the host's share may be profiling, a smaller one proves no host bottleneck."""
_WASTE = 0.15
"""Below this share, no single kind of waste is a bottleneck."""
_MEMORY_KERNELS = 0.67
"""Above this share of kernel time, bandwidth is what limits the device, not arithmetic."""

_BUSY_ENOUGH = 0.85
"""Share of the step in which a healthy device does useful work."""


def decide(analysis: Analysis, lines: Sequence[Budget], findings: Sequence[Finding]) -> Verdict:
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
    scores = score(lines, unsure=analysis.what_if.device_may_lead)
    device_alone = analysis.device is not None and not analysis.trace.tree.rows.size
    healthy = _healthy(scores, findings) and not device_alone
    leak = _leak(findings)
    if leak is not None and _outweighs(scores, findings):
        return Verdict("memory", healthy=False, confidence=leak.confidence, sentence=leak.message)
    unseen = sum(line.share for line in lines if line.label == UNSEEN_LABEL)
    confidence = _confidence(analysis, scores, unseen)
    if _unknown(lines, analysis):
        return Verdict(
            "undetermined",
            healthy=False,
            confidence=confidence,
            sentence="Most of the step is time that the recording does not explain.",
        )
    return Verdict(
        scores.bottleneck,
        healthy=healthy,
        confidence=confidence,
        sentence=_sentence(scores, healthy, lines, analysis)
        + (_DEVICE_ALONE if device_alone else ""),
    )


@dataclass(frozen=True)
class Scores:
    """Shares of the step, as the verdict weighs them.

    Attributes:
        useful: kernels, limited by arithmetic or by bandwidth.
        kernels: which of the two limits most of them.
        waste: everything else that has a class, by class.
        unsure: with more profiling overhead than is likely the device fills the step.
    """

    useful: float
    kernels: BottleneckClass
    waste: dict[BottleneckClass, float]
    unsure: bool = False

    @property
    def worst(self) -> BottleneckClass:
        """The largest kind of waste."""
        return max(self.waste, key=lambda name: self.waste[name])

    @property
    def bottleneck(self) -> BottleneckClass:
        """The class to name.

        Kernels are what a program is there for, so they count as the bottleneck only when they
        fill the step. Otherwise it is the largest kind of waste, if a single one is large.
        """
        waste = self.waste[self.worst]
        least = _HOST_CERTAIN if self.unsure and self.worst == "framework" else _WASTE
        if self.useful >= _USEFUL or (waste < least and self.useful >= waste):
            return self.kernels
        return self.worst

    @property
    def share(self) -> float:
        """Share of the step of the class to name."""
        named = self.bottleneck
        own = self.useful if named == self.kernels else 0.0
        return own + self.waste.get(named, 0.0)

    @property
    def lead(self) -> float:
        """How far the named class is ahead of the next one."""
        others = [share for name, share in self.waste.items() if name != self.bottleneck]
        return self.share - max(others)


def score(lines: Sequence[Budget], *, unsure: bool = False) -> Scores:
    """Sum the budget up."""
    arithmetic = bandwidth = 0.0
    waste: dict[BottleneckClass, float] = dict.fromkeys(
        ("memory", "data_loading", "communication", "framework"), 0.0
    )
    for line in lines:
        if line.label in (BANDWIDTH_LABEL, HOST_BANDWIDTH_LABEL):
            bandwidth += line.share
        elif line.class_ == "compute":
            arithmetic += line.share
        elif line.class_ != "unattributed":
            waste[line.class_] += line.share
    limited = bandwidth > _MEMORY_KERNELS * (arithmetic + bandwidth)
    kernels: BottleneckClass = "memory" if limited else "compute"
    return Scores(arithmetic + bandwidth, kernels, waste, unsure)


def _healthy(scores: Scores, findings: Sequence[Finding]) -> bool:
    medium = SEVERITIES.index("medium")
    worth_it = any(
        f.class_ != "quality" and SEVERITIES.index(f.severity) <= medium for f in findings
    )
    return not worth_it and scores.useful >= _BUSY_ENOUGH


def _leak(findings: Sequence[Finding]) -> Finding | None:
    """The finding that says that memory runs out: critical, though it costs no time."""
    return next(
        (
            f
            for f in findings
            if f.class_ == "memory" and f.gain.basis == "none" and f.severity == "critical"
        ),
        None,
    )


def led_by_verdict(verdict: Verdict, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings with the one that the verdict repeats first: what ends the program."""
    return tuple(sorted(findings, key=lambda finding: finding.message != verdict.sentence))


def _outweighs(scores: Scores, findings: Sequence[Finding]) -> bool:
    """Does memory that runs out come before the budget's class?

    It does when the device is busy with useful work, or when nothing else found is serious: a
    program that will crash is in more trouble than one that could be faster.
    """
    high = SEVERITIES.index("high")
    serious = any(SEVERITIES.index(f.severity) <= high and f.gain.basis != "none" for f in findings)
    return scores.bottleneck == scores.kernels or not serious


def _unknown(lines: Sequence[Budget], analysis: Analysis) -> bool:
    """Is more than half of the step time that the recording does not explain?

    Where a device waited, the host was late, whatever it did; without a device, code that was
    not recorded may be anything.
    """
    unseen = [line for line in lines if line.class_ == "unattributed"]
    if analysis.device is None:
        unseen += [line for line in lines if line.label == UNSEEN_LABEL]
    return sum(line.share for line in unseen) > 0.5


def _confidence(analysis: Analysis, scores: Scores, unseen: float) -> float:
    """Clear lead, complete device timeline, recorded host code, several steps, narrow bracket."""
    step = analysis.step_time
    width = (step.high - step.low) / max(step.mid, 1)
    value = 0.95
    value -= 0.25 * max(0.0, _CLEAR_LEAD - scores.lead) / _CLEAR_LEAD
    value -= min(0.2, 0.1 * width)
    value -= 0.0 if analysis.coverage.complete else 0.2
    value -= 0.15 if scores.unsure else 0.0
    value -= 0.3 if unseen > 0.5 else 0.0
    value -= 0.0 if analysis.trace.steps.count >= 3 else 0.1
    return round(max(value, 0.1), 2)


_DEVICE_ALONE = " The host was not recorded, so most causes cannot be looked for."

_KERNEL_LABELS = (BANDWIDTH_LABEL, HOST_BANDWIDTH_LABEL)
_SENTENCES: dict[str, str] = {
    "data_loading": "The device waits for input {share} of the step; most of it is {label}.",
    "communication": "Communication takes {share} of the step; most of it is {label}.",
    "framework": "The device waits for the host {share} of the step; most of it is {label}.",
    "memory": "Moving data takes {share} of the step; most of it is {label}.",
    "compute": "The device computes {share} of the step; most of it is {label}.",
}
_HOST_SENTENCES = {
    **_SENTENCES,
    "data_loading": "The program waits for input {share} of the step; most of it is {label}.",
    "framework": "Overhead on the host takes {share} of the step; most of it is {label}.",
    "compute": "The program computes {share} of the step; most of it is {label}.",
}


def limit(lines: Sequence[Budget]) -> Limit:
    """The class that limits a step with this budget, its largest part, and its share."""
    scores = score(lines)
    return Limit(scores.bottleneck, _largest(scores, lines), round(scores.share, 6))


def _largest(scores: Scores, lines: Sequence[Budget]) -> str:
    named = scores.bottleneck
    kernels = named == scores.kernels
    # Both kinds of kernels are named by the one class, so the larger one is to be named.
    mine = [
        line for line in lines if line.class_ == named or (kernels and line.label in _KERNEL_LABELS)
    ]
    return mine[0].label if mine else "not in a known class"


def _sentence(scores: Scores, healthy: bool, lines: Sequence[Budget], analysis: Analysis) -> str:
    templates = _SENTENCES if analysis.device else _HOST_SENTENCES
    text = templates[scores.bottleneck].format(
        share=percent(scores.share), label=_largest(scores, lines)
    )
    return f"{text} Nothing found is worth a fix." if healthy else text
