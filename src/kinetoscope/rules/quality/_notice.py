"""A hint about the recording: no gain, one sentence of what to do."""

from __future__ import annotations

from kinetoscope.metrics.intervals import Intervals, empty
from kinetoscope.result import Evidence, Fix, Severity
from kinetoscope.rules.api import Hit


def notice(
    message: str,
    *,
    fix: str,
    snippet: str = "",
    reference: str = "",
    evidence: tuple[Evidence, ...] = (),
    at_least: Severity = "info",
    confidence: float = 0.9,
    claims: Intervals | None = None,
) -> Hit:
    """A hit that is reported although it promises no time."""
    return Hit(
        message=message,
        evidence=evidence,
        fix=Fix(summary=fix, snippet=snippet, reference=reference),
        confidence=confidence,
        at_least=at_least,
        keep=True,
        claims=empty() if claims is None else claims,
    )
