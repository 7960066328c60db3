"""What comes after the fixes: the next bottleneck of each, and what several gain together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from kinetoscope.analysis import Analysis
from kinetoscope.analysis.aftermath import budget_after
from kinetoscope.analysis.gains import ReplayedGain
from kinetoscope.result import Finding, Gain, Limit, Together
from kinetoscope.rules.api import as_known, severity_of
from kinetoscope.rules.ordering import causes_of
from kinetoscope.verdict import limit

MOST_FINDINGS = 5
"""Findings looked at: nobody plans further ahead than the terminal shows."""


def with_outlook(
    analysis: Analysis, findings: Sequence[Finding], gains: Mapping[int, Gain]
) -> tuple[tuple[Finding, ...], tuple[Together, ...]]:
    """Findings that know the next bottleneck, and the gains of the first few together.

    Args:
        analysis: the rank that the findings speak of.
        findings: best first.
        gains: of each finding (by `id`), as its rule found it.
    """
    replayed = [
        (at, gain)
        for at, finding in enumerate(findings)
        if isinstance(gain := gains.get(id(finding)), ReplayedGain) and gain.mid > 1.0
    ][:MOST_FINDINGS]
    result = list(findings)
    for at, left in _left_after_causes(analysis, findings, gains):
        result[at] = left
    for at, gain in replayed:
        result[at] = msgspec.structs.replace(result[at], then=next_limit(analysis, gain))
    return tuple(result), _together(analysis, findings, replayed)


def _left_after_causes(
    analysis: Analysis, findings: Sequence[Finding], gains: Mapping[int, Gain]
) -> Iterator[tuple[int, Finding]]:
    """General findings with the gain that is left when the largest of their causes is gone."""
    for at, general in enumerate(findings):
        causes = [f for f in causes_of(general, findings[:at]) if id(f) in gains]
        if not causes or id(general) not in gains:
            continue
        first = gains[id(max(causes, key=lambda f: f.gain.mid))]
        own = gains[id(general)]
        if not isinstance(first, ReplayedGain) or not isinstance(own, ReplayedGain):
            continue
        both = analysis.what_if.together([first, own])
        low, mid, high = (max(b / first.mid, 1.0) for b in (both.low, both.mid, both.high))
        left = as_known(Gain(round(low, 3), round(mid, 3), round(high, 3), basis="replay"))
        severity = severity_of(left, at_most=general.severity)
        yield at, msgspec.structs.replace(general, gain=left, severity=severity)


def next_limit(analysis: Analysis, gain: ReplayedGain) -> Limit:
    """What limits the step when the likely change of a gain has been made."""
    return limit(budget_after(analysis, gain))


def _together(
    analysis: Analysis, findings: Sequence[Finding], replayed: Sequence[tuple[int, ReplayedGain]]
) -> tuple[Together, ...]:
    return tuple(
        Together(
            tuple(findings[at].code for at, _ in replayed[:count]),
            as_known(analysis.what_if.together([gain for _, gain in replayed[:count]])),
        )
        for count in range(2, len(replayed) + 1)
    )
