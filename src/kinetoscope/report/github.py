"""Findings as workflow commands of GitHub Actions: annotations at file and line."""

from __future__ import annotations

from kinetoscope.report import RenderOptions, phrases
from kinetoscope.report.text import clean, shorten
from kinetoscope.result import Diagnosis, Finding, Severity

COMMANDS: dict[Severity, str] = {
    "critical": "error",
    "high": "error",
    "medium": "warning",
    "low": "notice",
    "info": "notice",
}
_LONGEST = 1_000


def render(diagnosis: Diagnosis, options: RenderOptions) -> str:  # noqa: ARG001 - one signature
    """Return a line for the verdict and one for each finding.

    GitHub shows ten annotations of each level a step, so the best findings come first.
    """
    verdict = f"{diagnosis.verdict.sentence} Step time: {phrases.step_time(diagnosis.step)}."
    lines = [command("notice", {"title": "Kinetoscope"}, verdict)]
    lines += [_annotation(finding) for finding in diagnosis.findings]
    return "\n".join(lines) + "\n"


def command(name: str, properties: dict[str, str], message: str) -> str:
    """Return one workflow command in which no text can end a field or the line."""
    fields = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{name} {fields}::{_data(message)}"


def _annotation(finding: Finding) -> str:
    properties = {}
    at = next((place for place in finding.locations if place.file), None)
    if at is not None and at.file:
        properties["file"] = at.file
        properties["line"] = str(max(at.line or 1, 1))
    properties["title"] = f"{finding.code} {finding.name}"
    text = f"{finding.message} {finding.fix.summary} Gain: {phrases.gain(finding)}."
    return command(COMMANDS[finding.severity], properties, text)


def _data(text: str) -> str:
    text = shorten(clean(text), _LONGEST)
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
