"""SARIF holds each finding with a level, a file and a line."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from kinetoscope.report import render
from kinetoscope.report.sarif import LEVELS
from kinetoscope.result import Diagnosis, Location
from kinetoscope.result.finding import SEVERITIES
from tests import results


def _run(diagnosis: Diagnosis) -> dict[str, Any]:
    log = json.loads(render(diagnosis, "sarif"))
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    assert isinstance(run, dict)
    return run


def _uri(file: str) -> dict[str, str]:
    finding = msgspec.structs.replace(results.LOADER, locations=(Location(file=file, line=3),))
    (result,) = _run(results.diagnosis(findings=(finding,)))["results"]
    place: dict[str, str] = result["locations"][0]["physicalLocation"]["artifactLocation"]
    return place


def test_results_name_their_rule() -> None:
    run = _run(results.diagnosis())
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["message"]["text"]
        assert result["level"] in ("none", "note", "warning", "error")


def test_a_finding_stands_at_its_line() -> None:
    first = _run(results.diagnosis())["results"][0]
    assert first["level"] == "error"
    (place,) = first["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "cases.py"
    assert place["physicalLocation"]["region"]["startLine"] == 42
    assert place["logicalLocations"][0]["name"] == "__getitem__"
    assert [at["id"] for at in first["relatedLocations"]] == [1]


def test_a_finding_without_a_file_has_no_place() -> None:
    assert "locations" not in _run(results.diagnosis())["results"][1]


@pytest.mark.parametrize(
    ("file", "uri"),
    [
        ("src/a b.py", "src/a%20b.py"),
        ("./a.py", "a.py"),
        ("pkg\\mod.py", "pkg/mod.py"),
        ("/home/x/a.py", "file:///home/x/a.py"),
        ("C:\\x\\a.py", "file:///C:/x/a.py"),
    ],
)
def test_files_are_addresses(file: str, uri: str) -> None:
    place = _uri(file)
    assert place["uri"] == uri
    assert ("uriBaseId" in place) == (not uri.startswith("file:"))


def test_every_severity_has_a_level() -> None:
    assert set(LEVELS) == set(SEVERITIES)


def test_a_fingerprint_outlives_the_numbers() -> None:
    other = msgspec.structs.replace(results.LOADER, message="Other numbers.", severity="low")
    one, two = (
        _run(results.diagnosis(findings=(finding,)))["results"][0]["partialFingerprints"]
        for finding in (results.LOADER, other)
    )
    assert one == two


def test_hostile_texts() -> None:
    text = render(results.hostile(), "sarif")
    json.loads(text)
    assert "\x1b" not in text
    assert "\u202e" not in text
