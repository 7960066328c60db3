"""Findings as SARIF 2.1.0, for code scanning and editors: a rule, a level, a file and a line."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from kinetoscope.report import RenderOptions, phrases
from kinetoscope.report.page_data import tidy
from kinetoscope.report.text import clean
from kinetoscope.result import Diagnosis, Finding, Location, Severity

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
ROOT = "SRCROOT"
"""Base of relative paths: the root of the program's sources."""

LEVELS: dict[Severity, str] = {
    "critical": "error",
    "high": "error",
    "medium": "warning",
    "low": "note",
    "info": "note",
}


def render(diagnosis: Diagnosis, options: RenderOptions) -> str:  # noqa: ARG001 - one signature
    """Return the log, indented, with a newline at the end."""
    run = {
        "tool": {
            "driver": {
                "name": "Kinetoscope",
                "version": diagnosis.kinetoscope,
                "semanticVersion": _semantic(diagnosis.kinetoscope),
                "rules": _rules(diagnosis),
            }
        },
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {ROOT: {"description": {"text": "Root of the program's sources."}}},
        "invocations": [{"executionSuccessful": True}],
        "results": [_result(diagnosis, finding) for finding in diagnosis.findings],
        "properties": {
            "verdict": diagnosis.verdict.sentence,
            "bottleneck": diagnosis.verdict.bottleneck,
            "healthy": diagnosis.verdict.healthy,
            "step_ns": diagnosis.step.time_ns.mid,
        },
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [tidy(run)]}
    return json.dumps(log, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _semantic(version: str) -> str:
    match = re.match(r"\d+\.\d+\.\d+", version)
    return match[0] if match else "0.0.0"


def _codes(diagnosis: Diagnosis) -> list[str]:
    return sorted({finding.code for finding in diagnosis.findings})


def _rules(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    first = {finding.code: finding for finding in reversed(diagnosis.findings)}
    return [_rule(first[code]) for code in _codes(diagnosis)]


def _rule(finding: Finding) -> dict[str, Any]:
    rule: dict[str, Any] = {
        "id": finding.code,
        "name": "".join(part.capitalize() for part in finding.name.split("-")),
        "shortDescription": {"text": finding.name.replace("-", " ")},
        "help": {"text": f"kinetoscope rules {finding.code}"},
        "defaultConfiguration": {"level": LEVELS[finding.severity]},
        "properties": {"tags": ["performance", finding.class_]},
    }
    if re.fullmatch(r"https://[\w./#?=&%~:+-]+", finding.fix.reference, re.ASCII):
        rule["helpUri"] = finding.fix.reference
    return rule


def _result(diagnosis: Diagnosis, finding: Finding) -> dict[str, Any]:
    gain = phrases.gain(finding)
    text = " ".join(
        part for part in (finding.message, finding.fix.summary, f"Gain: {gain}.") if part
    )
    places = [at for at in finding.locations if at.file]
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": _codes(diagnosis).index(finding.code),
        "level": LEVELS[finding.severity],
        "message": {"text": text},
        "partialFingerprints": {"kinetoscope/v1": _fingerprint(finding)},
        "properties": {
            "severity": finding.severity,
            "confidence": finding.confidence,
            "gain": {"low": finding.gain.low, "mid": finding.gain.mid, "high": finding.gain.high},
            "rank": finding.rank,
        },
    }
    if places:
        result["locations"] = [_location(places[0])]
        result["relatedLocations"] = [
            {"id": number, **_location(at)} for number, at in enumerate(places[1:], 1)
        ]
    return result


def _location(at: Location) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": max(at.line or 1, 1)}
    if at.snippet:
        region["snippet"] = {"text": clean(at.snippet)}
    place: dict[str, Any] = {
        "physicalLocation": {"artifactLocation": _artifact(at.file or ""), "region": region}
    }
    if at.function:
        place["logicalLocations"] = [{"name": at.function, "kind": "function"}]
    if not at.exact:
        place["message"] = {"text": "The first line of the function; the call is inside it."}
    return place


def _artifact(file: str) -> dict[str, str]:
    path = clean(file).replace("\\", "/")
    if PurePosixPath(path).is_absolute():
        return {"uri": f"file://{quote(path)}"}
    if re.match(r"[A-Za-z]:/", path):
        return {"uri": f"file:///{quote(path, safe='/:')}"}
    return {"uri": quote(path.removeprefix("./")), "uriBaseId": ROOT}


def _fingerprint(finding: Finding) -> str:
    """Tells a finding from others, whatever its numbers are this time."""
    at = finding.locations[0] if finding.locations else Location()
    key = "\0".join((finding.code, at.file or "", at.function or "", at.module or ""))
    return hashlib.sha256(key.encode("utf-8", "backslashreplace")).hexdigest()[:32]
