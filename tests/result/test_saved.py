"""Saved results are read again; what is not one gets a sentence and a next step."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kinetoscope.errors import ResultError
from kinetoscope.report import render
from kinetoscope.result.saved import decode
from tests import results


def _document(**changes: Any) -> bytes:
    document = json.loads(render(results.diagnosis(), "json"))
    document.update(changes)
    return json.dumps(document).encode()


def test_a_saved_result_comes_back() -> None:
    again = decode(_document(), name="r.json")
    assert again.findings[0].locations == results.LOADER.locations
    assert again.step == results.diagnosis().step


def test_unknown_fields_are_ignored() -> None:
    assert decode(_document(weather="fine"), name="r.json").verdict.bottleneck == "data_loading"


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        (b"", "not JSON", "-o result.json"),
        (b"\xff\xfe{}", "not JSON", "-o result.json"),
        (b"[" * 100_000, "not JSON", "-o result.json"),
        (b'{"traceEvents": []}', "is a trace", "analyze r.json"),
        (b'[{"ph": "X"}]', "is a trace", "analyze r.json"),
        (b"{}", "no schema_version", "-o result.json"),
        (b"3", "no schema_version", "-o result.json"),
        (_document(schema_version=99), "schema_version 99", "pip install --upgrade"),
        (_document(schema_version="1"), "unknown schema_version", "reads 1 to"),
        (_document(schema_version=True), "unknown schema_version", "reads 1 to"),
        (_document(schema_version=0), "unknown schema_version", "reads 1 to"),
        (_document(verdict={}), "not a complete result", "edited or cut off"),
        (_document(findings=3), "not a complete result", "edited or cut off"),
    ],
)
def test_what_is_no_result(data: bytes, message: str, hint: str) -> None:
    with pytest.raises(ResultError) as error:
        decode(data, name="r.json")
    assert "r.json" in error.value.message
    assert message in error.value.message
    assert hint in error.value.hint


def test_a_result_from_before_profiles_is_read_and_not_compared() -> None:
    from pathlib import Path

    from kinetoscope.compare import compare

    path = Path(__file__).parent / "fixtures" / "result_v1_without_profile.json"
    old = decode(path.read_bytes(), name=path.name)
    assert old.profile is None
    assert compare(old, old).verdict.outcome == "not_comparable"
