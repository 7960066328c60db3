"""Best first; and a cause that explains much of a slow host before the symptom."""

from __future__ import annotations

from collections.abc import Iterable

from kinetoscope.result import Finding
from kinetoscope.result.finding import SEVERITIES
from kinetoscope.rules.api import saved_share

GENERAL = ("FW501", "FW502", "FW513")
"""The host launches too slowly: true of every program whose host does too much."""
_HOST_CLASSES = ("framework", "data_loading")
_GOOD_PART = 0.25
"""Part of what the general finding would save that a cause must explain to come before it."""
_SURE = 0.7
_DOUBTFUL = SEVERITIES.index("high")
"""A fault of the recording that is as severe makes everything else doubtful, and comes first."""


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Best first: by severity, then by the likely gain weighted with confidence.

    What is better recorded otherwise comes last, unless nothing can be trusted without it.

    A general finding about launching comes after the causes of its severity that explain a good
    part of it.
    """
    ordered = sorted(findings, key=_key)
    for general in [f for f in ordered if f.code in GENERAL]:
        causes = causes_of(general, ordered)
        if causes:
            ordered.remove(general)
            ordered.insert(1 + max(ordered.index(f) for f in causes), general)
    return tuple(ordered)


def causes_of(general: Finding, findings: Iterable[Finding]) -> list[Finding]:
    """The findings that explain a good part of this one, if it is a general one."""
    if general.code not in GENERAL:
        return []
    return [finding for finding in findings if _explains(finding, general)]


def _key(finding: Finding) -> tuple[bool, int, float, str]:
    return (
        finding.class_ == "quality" and SEVERITIES.index(finding.severity) > _DOUBTFUL,
        SEVERITIES.index(finding.severity),
        -(finding.gain.mid - 1) * finding.confidence,
        finding.code,
    )


def _explains(finding: Finding, general: Finding) -> bool:
    return (
        finding.code not in GENERAL
        and (finding.class_ in _HOST_CLASSES or finding.code.startswith("IN"))
        and finding.severity == general.severity
        and finding.confidence >= _SURE
        and finding.gain.basis == "replay"
        and saved_share(finding.gain) >= _GOOD_PART * saved_share(general.gain)
    )


__all__ = ["causes_of", "ranked"]
