"""Findings that went away, stayed or are new, and promises that were kept or not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from kinetoscope.result import Diagnosis, Finding, Location
from kinetoscope.result.comparison import (
    Fate,
    FindingChange,
    FindingChanges,
    Kept,
    Prediction,
    Ratio,
)

_TOLERANCE = 0.05
"""A gain this close to the predicted range is as predicted: two runs differ by as much."""


def finding_changes(before: Sequence[Diagnosis], after: Sequence[Diagnosis]) -> FindingChanges:
    """Match the findings of both sides by code, and by place where one code occurs twice.

    With several runs a finding counts when more than half of the runs have it.
    """
    a, b = _usual(before), _usual(after)
    gone, stayed, new = [], [], []
    left = list(b)
    for finding in a:
        match = _match(finding, left)
        if match is None:
            gone.append(_changed(finding, "gone"))
        else:
            left.remove(match)
            stayed.append(_changed(match, "stayed"))
    new = [_changed(finding, "new") for finding in left]
    return FindingChanges(tuple(gone), tuple(stayed), tuple(new))


def _usual(runs: Sequence[Diagnosis]) -> list[Finding]:
    """Findings that most runs have, as the first run with them says them."""
    kept: list[Finding] = []
    for run in runs:
        for finding in run.findings:
            if finding.class_ == "quality" or _match(finding, kept) is not None:
                continue
            votes = sum(_match(finding, list(other.findings)) is not None for other in runs)
            if 2 * votes > len(runs):
                kept.append(finding)
    return kept


def _match(finding: Finding, others: Sequence[Finding]) -> Finding | None:
    same = [f for f in others if f.code == finding.code and f.rank == finding.rank]
    same = same or [f for f in others if f.code == finding.code]
    here = place_key(finding)
    at_place = [f for f in same if place_key(f) == here]
    if at_place:
        return at_place[0]
    # Without places on one side (no stacks recorded) the code has to do.
    return same[0] if same and (here is None or any(place_key(f) is None for f in same)) else None


def place_key(finding: Finding) -> tuple[str, str] | None:
    """File and function (not the line: the fix moved it); the module where there is no file."""
    for at in finding.locations:
        if at.file:
            return PurePath(at.file).name, at.function or ""
        if at.module:
            return "", at.module
    return None


def _changed(finding: Finding, fate: Fate) -> FindingChange:
    place: Location | None = finding.locations[0] if finding.locations else None
    return FindingChange(
        code=finding.code,
        name=finding.name,
        class_=finding.class_,
        fate=fate,
        severity=finding.severity,
        message=finding.message,
        gain=finding.gain,
        location=place,
    )


def predictions(changes: FindingChanges, achieved: Ratio | None) -> tuple[Prediction, ...]:
    """Hold the gain promised for each finding that is gone against what was achieved.

    Several findings that went away share the achieved gain; the largest promise stands first.
    """
    if achieved is None:
        return ()
    timed = [f for f in changes.gone if f.gain.basis != "none"]
    timed.sort(key=lambda f: -f.gain.mid)
    return tuple(Prediction(f.code, f.gain, achieved, _kept(f, achieved)) for f in timed)


def _kept(finding: FindingChange, achieved: Ratio) -> Kept:
    slower = achieved.high < 1.0 <= finding.gain.low
    if slower or achieved.high < finding.gain.low * (1 - _TOLERANCE):
        return "less"
    if achieved.low > finding.gain.high * (1 + _TOLERANCE):
        return "more"
    # The interval holds "no change" and more than the promise as well: it tells nothing.
    wide = achieved.high > finding.gain.high * (1 + _TOLERANCE)
    if achieved.low <= 1.0 and (wide or finding.gain.low > 1.0):
        return "unknown"
    return "as_predicted"
