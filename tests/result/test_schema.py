"""The published JSON Schema is the one of the structs, and documents obey it."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import jsonschema
import pytest

from kinetoscope.report import render
from kinetoscope.result import Diagnosis, schema
from tests import results


def test_the_published_file_is_current() -> None:
    published = files("kinetoscope.result").joinpath(schema.PUBLISHED).read_text("utf-8")
    assert json.loads(published) == schema.generate(), (
        "run: python docs/generate.py --write (and think of schema_version)"
    )
    assert schema.published() == schema.generate()


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema.generate())


@pytest.mark.parametrize("make", [results.diagnosis, results.healthy, results.hostile])
def test_documents_are_valid(make: Any) -> None:
    document = json.loads(render(make(), "json"))
    jsonschema.validate(document, schema.published())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema_version",), 2),
        (("verdict", "bottleneck"), "network"),
        (("step", "time_ns", "mid"), 3.5),
        (("findings", 0, "severity"), "dire"),
        (("findings", 0, "gain", "basis"), "guess"),
    ],
)
def test_wrong_documents_are_not(path: tuple[Any, ...], value: object) -> None:
    document = json.loads(render(results.diagnosis(), "json"))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema.published())


def test_a_new_field_needs_no_new_version() -> None:
    document = json.loads(render(results.diagnosis(), "json"))
    document["findings"][0]["colour"] = "red"
    jsonschema.validate(document, schema.published())


def test_field_names_are_those_of_the_specification() -> None:
    document = json.loads(render(results.diagnosis(), "json"))
    assert set(document) >= {
        *("schema_version", "kinetoscope", "inputs", "verdict", "step", "budget"),
        *("device_timeline", "findings", "rules"),
    }
    assert set(document["inputs"][0]) >= {
        *("path", "kind", "rank", "events", "devices", "torch", "damage"),
    }
    assert set(document["verdict"]) == {"bottleneck", "healthy", "confidence", "sentence"}
    assert set(document["step"]) >= {"count", "source", "time_ns", "recorded_ns"}
    assert set(document["step"]["time_ns"]) == {"low", "mid", "high"}
    assert set(document["budget"][0]) == {"class", "label", "ns", "share"}
    assert set(document["device_timeline"][0]) == {
        *("rank", "device", "span_ns", "busy_ns", "compute_ns", "comm_ns", "exposed_comm_ns"),
        *("memcpy_ns", "exposed_memcpy_ns", "idle_ns"),
    }
    finding = document["findings"][0]
    assert set(finding) >= {
        *("code", "name", "class", "severity", "confidence", "message", "evidence"),
        *("locations", "fix", "gain"),
    }
    assert set(finding["evidence"][0]) == {"name", "value", "unit", "origin"}
    assert set(finding["locations"][0]) >= {
        *("file", "line", "function", "module", "exact", "count"),
    }
    assert set(finding["fix"]) == {"summary", "snippet", "reference"}
    assert set(finding["gain"]) == {"low", "mid", "high", "unit", "basis"}
    assert set(document["rules"][0]) >= {"code", "status", "reason"}


def test_the_structs_hold_no_other_number_types() -> None:
    """Everything in a result is plain data: it survives a trip through JSON unchanged."""
    import msgspec

    first = results.diagnosis()
    assert msgspec.json.decode(msgspec.json.encode(first), type=Diagnosis) == first
