"""What comes after the fixes: the next bottleneck of each, and what several gain together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kinetoscope.analysis import Analysis
from kinetoscope.analysis.aftermath import budget_after
from kinetoscope.analysis.gains import ReplayedGain
from kinetoscope.result import Finding, Gain, Limit, Together
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
    for at, gain in replayed:
        result[at] = msgspec.structs.replace(result[at], then=next_limit(analysis, gain))
    return tuple(result), _together(analysis, findings, replayed)


def next_limit(analysis: Analysis, gain: ReplayedGain) -> Limit:
    """What limits the step when the likely change of a gain has been made."""
    return limit(budget_after(analysis, gain))


def _together(
    analysis: Analysis, findings: Sequence[Finding], replayed: Sequence[tuple[int, ReplayedGain]]
) -> tuple[Together, ...]:
    return tuple(
        Together(
            tuple(findings[at].code for at, _ in replayed[:count]),
            analysis.what_if.together([gain for _, gain in replayed[:count]]),
        )
        for count in range(2, len(replayed) + 1)
    )
