"""The sentences of a page, in the words that all text formats share."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from kinetoscope import units
from kinetoscope.report import phrases
from kinetoscope.report.text import clean_lines
from kinetoscope.result import Diagnosis, Finding, Location

_DEFINITION = re.compile(r"\s*(async\s+)?(def|class)\s")


def words(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the texts that a page shows next to the numbers of the result."""
    outcomes: Counter[str] = Counter(outcome.status for outcome in diagnosis.rules)
    return {
        "classes": phrases.CLASSES,
        "standing": phrases.standing(diagnosis),
        "confidence": phrases.confidence(diagnosis.verdict.confidence),
        "step_time": phrases.step_time(diagnosis.step),
        "step_detail": phrases.step_detail(diagnosis.step),
        "next": _next(diagnosis),
        "inputs": phrases.inputs(diagnosis.inputs),
        "damage": phrases.damage(diagnosis),
        "rules": phrases.counted(outcomes),
        "skipped": [
            {"text": phrases.skipped_line(reason, codes), "codes": codes}
            for reason, codes in phrases.skipped(diagnosis)
        ],
        "findings": [_finding(diagnosis, finding) for finding in diagnosis.findings],
    }


def _next(diagnosis: Diagnosis) -> str:
    together = phrases.together(diagnosis)
    return phrases.next_step(diagnosis) + (f" Together, {together}." if together else "")


def _gain(finding: Finding) -> str:
    then = phrases.then(finding)
    return phrases.gain(finding) + (f"; {then}" if then else "")


def _code(at: Location) -> list[str]:
    """Lines of code of a place; a `def` line says no more than the function's name above it."""
    if not at.snippet or (not at.exact and _DEFINITION.match(at.snippet)):
        return []
    return clean_lines(at.snippet, limit=8)


def _finding(diagnosis: Diagnosis, finding: Finding) -> dict[str, Any]:
    return {
        "gain": _gain(finding),
        "expected": phrases.expected_step(diagnosis.step, finding.gain),
        "confidence": phrases.confidence(finding.confidence),
        "places": [phrases.place(at) for at in finding.locations],
        "place_details": [phrases.place_detail(at) for at in finding.locations],
        "code_lines": [_code(at) for at in finding.locations],
        "evidence": [
            {"name": phrases.evidence_name(item), "value": units.quantity(item.value, item.unit)}
            for item in finding.evidence
        ],
    }
