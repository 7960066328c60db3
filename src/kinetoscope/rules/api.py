"""The contract of a rule: what it declares, what it sees, what it may say.

A rule is one module that ends with `RULE = Rule(...)`. Its docstring is its page. Its `check`
gets an `Analysis` and its thresholds, and yields `Hit`s; the engine turns those into findings,
decides severity, and makes sure that every rule answers on every trace.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from kinetoscope.analysis import Analysis, Need
from kinetoscope.analysis.gains import ReplayedGain
from kinetoscope.metrics.intervals import Intervals, empty
from kinetoscope.result import Evidence, Finding, Fix, Gain, Location, RuleOutcome, Severity
from kinetoscope.result.finding import NO_GAIN, SEVERITIES
from kinetoscope.result.vocabulary import FindingClass, RuleStatus

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

NEED_TEXT: dict[Need, str] = {
    "device": "device activity (activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
    "launches": "launch records that match the device's kernels",
    "shapes": "input shapes (record_shapes=True)",
    "stacks": "Python stacks (with_stack=True)",
    "memory": "memory events (profile_memory=True)",
    "ops": "host operators (ProfilerActivity.CPU)",
    "steps": "at least two steps (call prof.step())",
    "ranks": "the traces of several ranks",
}

SEVERITY_BOUNDS: tuple[tuple[float, Severity], ...] = (
    (0.20, "critical"),
    (0.10, "high"),
    (0.05, "medium"),
    (0.02, "low"),
)
"""Share of the step that the fix would save, and the severity from there on."""


class Options(msgspec.Struct, frozen=True):
    """Base of a rule's thresholds. Each field has a default and a docstring with its source."""


@dataclass(frozen=True)
class Example:
    """A small trace on which the rule must fire or stay silent; a test and a part of the page.

    `peers` builds the recordings of ranks 1, 2, ... for a rule that compares ranks.
    """

    title: str
    build: Callable[[TraceBuilder], object]
    fires: bool
    peers: tuple[Callable[[TraceBuilder], object], ...] = ()


@dataclass(frozen=True)
class Hit:
    """What a rule found, before the engine has made a finding of it.

    Attributes:
        confidence: 0.9 for a direct match of names, 0.7 for a numeric criterion, 0.4 for a hint.
        claims: stretches of time whose cost this hit explains (idle pieces, kernels, host time);
            precedence compares them.
        at_most, at_least: bounds for the severity that follows from the gain.
        keep: report even without a time gain (memory, correctness, quality).
        explains: precedence drops weaker findings of the same time; not for a hint whose fix fits
            other circumstances only.
    """

    message: str
    evidence: tuple[Evidence, ...] = ()
    locations: tuple[Location, ...] = ()
    fix: Fix = field(default_factory=lambda: Fix(summary=""))
    gain: Gain = NO_GAIN
    confidence: float = 0.7
    claims: Intervals = field(default_factory=empty)
    at_most: Severity = "critical"
    at_least: Severity = "info"
    keep: bool = False
    explains: bool = True


Check = Callable[[Analysis, Any], Iterable[Hit]]


@dataclass(frozen=True)
class Rule:
    """One anti-pattern.

    Attributes:
        code, name: `DL101`, `sync-dataloader-in-main-process`; the file is called after both.
        class_: class of the findings.
        summary: one sentence for lists.
        needs: what the trace must contain.
        options: default thresholds.
        check: yields hits.
        examples: at least one that fires and one that does not.
        evidence: E reproduced on CPU, T seen in real device traces, S read in source, L hint.
        references: where the pattern and its fix are described.
        remedies: ids of the experiments that can try the fix without editing the program, with the
            parameter that the gain is of (`compile=reduce-overhead`) where only one is meant.
        gain_of: those of them that the gain is of, where others change something else and gain more
            or less; empty: all of them.
        preview: off by default until a recording proves it.
    """

    code: str
    name: str
    class_: FindingClass
    summary: str
    check: Check
    options: Options
    examples: tuple[Example, ...]
    needs: frozenset[Need] = frozenset()
    since: str = "0.1"
    evidence: str = "T"
    references: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    gain_of: tuple[str, ...] = ()
    preview: bool = False

    @property
    def doc(self) -> str:
        """The module's docstring: the rule's page in Markdown."""
        return sys.modules[self.check.__module__].__doc__ or ""

    def _missing(self, analysis: Analysis) -> list[Need]:
        """What the rule needs and the recording lacks: without a device that, not its launches."""
        missing = {need for need in self.needs if not analysis.has(need)}
        if "launches" in missing and not analysis.has("device"):
            missing = missing - {"launches"} | {"device"}
        return sorted(missing)

    def run(self, analysis: Analysis, options: Options | None = None) -> Outcome:
        """Answer on any trace: fired, silent, skipped (what is missing) or errored."""
        missing = self._missing(analysis)
        if missing:
            reason = "the recording lacks " + "; ".join(NEED_TEXT[need] for need in missing)
            return Outcome(self, "skipped", reason=reason)
        try:
            hits = tuple(self.check(analysis, options or self.options))
        except Exception as error:  # a broken rule must not take the others down
            return Outcome(self, "errored", reason=f"{type(error).__name__}: {error}", error=error)
        kept = tuple(hit for hit in hits if hit.keep or worth_saying(hit.gain))
        if kept:
            return Outcome(self, "fired", hits=kept)
        if not hits:
            return Outcome(self, "silent")
        return Outcome(self, "silent", reason=_no_gain(self, analysis), withheld=hits[0].message)


_HIDING = 0.9
"""Busy share of the step from which on the device hides what the host does."""


def _no_gain(rule: Rule, analysis: Analysis) -> str:
    """Why something that was found is not worth a fix."""
    busy = analysis.busy_per_step_ns / max(analysis.step_ns, 1)
    if rule.class_ in ("framework", "data_loading") and analysis.device and busy >= _HIDING:
        return "no gain: hidden behind the device's work"
    return "the fix would gain less than 2 % of the step"


@dataclass(frozen=True)
class Outcome:
    """What one rule said about one trace.

    `withheld` is what a silent rule found and did not report; `reason` says why. `alone` is what
    its fix gains where another finding explains the same time.
    """

    rule: Rule
    status: RuleStatus
    hits: tuple[Hit, ...] = ()
    reason: str | None = None
    error: Exception | None = None
    withheld: str | None = None
    alone: Gain | None = None

    def silenced(self, reason: str) -> Outcome:
        """The outcome without its hits, and why."""
        found = self.hits[0].message if self.hits else self.withheld
        return replace(self, status="silent", hits=(), reason=reason, withheld=found)

    def explained_by(self, code: str) -> Outcome:
        """The outcome when another finding explains its time: the fix gains what it gained."""
        return replace(self.silenced(f"explained by {code}"), alone=self._best_gain())

    def record(self) -> RuleOutcome:
        """The line of the result's `rules`."""
        gain = self._best_gain() if self.hits else self.alone
        return RuleOutcome(self.rule.code, self.status, self.reason, self.withheld, gain)

    def _best_gain(self) -> Gain | None:
        gains = [f.gain for f in self.findings if f.gain.basis != "none"]
        return max(gains, key=lambda gain: gain.mid, default=None)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The hits as findings."""
        return tuple(finding_of(self.rule, hit) for hit in self.hits)


def saved_share(gain: Gain) -> float:
    """Share of the step that a gain saves (its middle estimate): 1 - new / old."""
    return max(0.0, 1.0 - 1.0 / gain.mid) if gain.mid > 0 else 0.0


def worth_saying(gain: Gain) -> bool:
    """Does a fix save at least 2 % of the step?"""
    return saved_share(gain) >= SEVERITY_BOUNDS[-1][0]


def severity_of(
    gain: Gain, at_most: Severity = "critical", at_least: Severity = "info"
) -> Severity:
    """Severity by the share of the step that the fix saves, within bounds."""
    share = saved_share(gain)
    found: Severity = next((name for bound, name in SEVERITY_BOUNDS if share >= bound), "info")
    order = SEVERITIES.index
    rank = min(max(order(found), order(at_most)), order(at_least))
    return SEVERITIES[rank]


MODEL_ERROR = 0.2
"""However certain the recorded times are, what a program takes after a fix is known to about 20 %:
the half width, as a logarithm, that holds three of four gains of programs that the device limits.
It is not larger than the share of the step that goes away."""


def as_known(gain: Gain) -> Gain:
    """A replayed gain with at least the width that the model of a fix deserves."""
    if gain.basis != "replay" or gain.mid <= 1.0:
        return gain
    least = math.exp(min(MODEL_ERROR, saved_share(gain)))
    low = max(min(gain.low, gain.mid / least), 1.0)
    high = max(gain.high, gain.mid * least)
    return Gain(round(low, 3), gain.mid, round(high, 3), basis=gain.basis, unit=gain.unit)


def finding_of(rule: Rule, hit: Hit) -> Finding:
    """Make a finding of a rule's hit."""
    return Finding(
        code=rule.code,
        name=rule.name,
        class_=rule.class_,
        severity=severity_of(hit.gain, hit.at_most, hit.at_least),
        confidence=round(hit.confidence, 2),
        message=hit.message,
        evidence=hit.evidence,
        locations=hit.locations,
        fix=hit.fix,
        gain=as_known(hit.gain.stated() if isinstance(hit.gain, ReplayedGain) else hit.gain),
        remedies=rule.remedies,
    )
