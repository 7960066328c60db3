"""JSON is strict, Markdown cannot be broken out of, and formats follow the suffix."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from kinetoscope.errors import UsageError
from kinetoscope.report import FORMATS, RenderOptions, format_of, render
from kinetoscope.report.markdown import code, escape
from kinetoscope.result import Gain
from tests import results


def _refuse(constant: str) -> None:
    raise AssertionError(constant)


def test_json_is_strict() -> None:
    text = render(results.hostile(), "json")
    document = json.loads(text, parse_constant=_refuse)
    assert text.endswith("}\n")
    assert document["findings"][0]["evidence"][1] == {
        "name": "wait_ns",
        "value": "not a number",
        "unit": "text",
        "origin": "measured",
    }


def test_json_keeps_names_and_is_safe_to_print() -> None:
    text = render(results.hostile(), "json")
    assert json.loads(text)["verdict"]["sentence"] == results.HOSTILE
    assert not re.search(
        "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]", text
    )


def test_json_numbers_are_no_finer_than_they_are_known() -> None:
    document = json.loads(render(results.diagnosis(), "json"))
    assert document["findings"][0]["evidence"][0]["value"] == 0.794872
    assert document["budget"][0]["share"] == 0.794872
    assert document["step"]["time_ns"]["mid"] == 39_000_000


def test_json_of_numbers_that_are_none() -> None:
    finding = msgspec.structs.replace(
        results.LOADER, confidence=float("nan"), gain=Gain(1, float("inf"), 2, "replay")
    )
    document = json.loads(render(results.diagnosis(findings=(finding,)), "json"))
    assert document["findings"][0]["confidence"] is None
    assert document["findings"][0]["gain"]["mid"] is None


def test_json_of_a_path_that_is_not_utf8() -> None:
    path = b"caf\xe9.json".decode("utf-8", "surrogateescape")
    info = msgspec.structs.replace(results.diagnosis().inputs[0], path=path)
    text = render(results.diagnosis(inputs=(info,)), "json")
    assert msgspec.json.decode(text.encode())["inputs"][0]["path"] == "caf\\udce9.json"


def test_markdown_says_it_all() -> None:
    page = render(results.diagnosis(), "markdown")
    for part in (
        "## Kinetoscope: data loading",
        "| 79 % | 31.0 ms | data loading | waiting for the DataLoader |",
        "### 1. DL101 sync-dataloader-in-main-process (critical)",
        "`cases.py:42 __getitem__` (first line of the function, 192 events)",
        "```python\nDataLoader(\n    dataset",
        "step 2.9x to 5.4x faster, likely 4.6x",
        "([reference](https://docs.pytorch.org/docs/stable/data.html))",
        "2 rules need input shapes (record_shapes=True)",
    ):
        assert part in page


def test_hostile_markdown() -> None:
    page = render(results.hostile(), "markdown")
    outside = re.sub(r"``.*?``|```.*?```", "", page, flags=re.S)
    assert "<script" not in outside
    assert not re.search(r"(?<![\\\w])@team", outside)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2066]", page)
    table = next(line for line in page.splitlines() if line.startswith("| 100 %"))
    assert len(re.findall(r"(?<!\\)\|", table)) == 5


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("record_shapes=True", "record_shapes=True"),
        ("_private_", "\\_private\\_"),
        ("a*b*", "a\\*b\\*"),
        ("x < y & z", "x &lt; y &amp; z"),
        ("[a](http://b)", "\\[a\\](http://b)"),
        ("@someone", "@<!-- -->someone"),
    ],
)
def test_escape(raw: str, shown: str) -> None:
    assert escape(raw) == shown


def test_code_spans_hold_backticks() -> None:
    assert code("a") == "`a`"
    assert code("a``b") == "``` a``b ```"


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("a.json", "json"),
        ("x/b.MD", "markdown"),
        ("c.txt", "terminal"),
        ("d.markdown", "markdown"),
        ("e.htm", "html"),
    ],
)
def test_the_suffix_says_the_format(path: str, form: str) -> None:
    assert format_of(path) == form


@pytest.mark.parametrize("path", ["a.pdf", "b", ".json.gz", "c.json.gz"])
def test_other_suffixes_name_those_that_exist(path: str) -> None:
    with pytest.raises(UsageError) as error:
        format_of(path)
    assert ".html, .json, .md, .sarif, .txt" in error.value.hint


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_ends_with_a_newline(form: str) -> None:
    text = render(results.diagnosis(), form, RenderOptions(width=80))
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
