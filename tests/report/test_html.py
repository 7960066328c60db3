"""The page is one file that nothing in a recording can turn into a program."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kinetoscope import viewdata
from kinetoscope.report import RenderOptions, render
from kinetoscope.report.html import MOST_INPUTS
from kinetoscope.report.page import asset
from kinetoscope.report.page_data import LONGEST, packed, tidy
from tests import recordings, results


class _Page(HTMLParser):
    """Elements with their text, in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))
        self._inside = True

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            tag, attrs, text = self.found[-1]
            self.found[-1] = tag, attrs, text + data

    def of(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attrs, text) for name, attrs, text in self.found if name == tag]


def _data(page: str) -> dict[str, Any]:
    text = next(text for attrs, text in _Page(page).of("script") if attrs.get("id") == "result")
    document: dict[str, Any] = json.loads(text)
    return document


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = recordings.examined(recordings.hostile(), tmp_path_factory.mktemp("trace"))
    view = viewdata.build(found.lead, found.ranks, found.diagnosis.findings)
    return render(results.hostile(), "html", RenderOptions(view=view))


def test_the_policy_allows_this_program_and_style_only() -> None:
    page = _Page(render(results.diagnosis(), "html"))
    policy = next(a["content"] for a, _ in page.of("meta") if a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    script = next(text for attrs, text in page.of("script") if not attrs)
    ((_, style),) = page.of("style")
    assert f"script-src 'sha256-{_hash(script)}'" in policy
    assert f"style-src 'sha256-{_hash(style)}'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


def test_the_page_names_no_other_place() -> None:
    page = _Page(render(results.diagnosis(), "html"))
    for _, attrs, _ in page.found:
        assert not {"src", "href", "action", "onclick", "style"} & set(attrs)


def test_hostile_names_stay_data(hostile_page: str) -> None:
    tags = [tag for tag, _, _ in _Page(hostile_page).found]
    assert tags.count("script") == 3
    assert "img" not in tags
    assert not re.search(
        "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]",
        hostile_page.replace(asset("report.js"), ""),
    )
    document = _data(hostile_page)
    assert "\\x1b" in document["result"]["verdict"]["sentence"]


def test_names_of_any_length_do_not_grow_the_page(hostile_page: str) -> None:
    view = next(t for a, t in _Page(hostile_page).of("script") if a.get("id") == "view")
    raw = zlib.decompress(base64.b64decode(view))
    size = struct.unpack("<I", raw[:4])[0]
    document = json.loads(raw[4 : 4 + size])
    assert max(len(name["text"]) for name in document["timeline"]["names"]) <= 2 * LONGEST
    assert len(hostile_page) < 400_000


def test_a_page_without_a_view() -> None:
    page = render(results.diagnosis(), "html")
    view = next(text for attrs, text in _Page(page).of("script") if attrs.get("id") == "view")
    assert view == ""
    assert _data(page)["words"]["findings"][0]["places"][0] == "cases.py:42 __getitem__"


def test_without_scripts_the_page_still_answers() -> None:
    page = render(results.diagnosis(), "html")
    text = page[page.index("<noscript>") : page.index("</noscript>")]
    assert results.diagnosis().verdict.sentence in text
    assert "DL101" in text


def test_many_inputs_are_cut() -> None:
    info = results.diagnosis().inputs[0]
    document = _data(render(results.diagnosis(inputs=(info,) * 300), "html"))
    assert len(document["result"]["inputs"]) == MOST_INPUTS
    assert document["more_inputs"] == 300 - MOST_INPUTS


def test_columns_follow_the_document(tmp_path: Path) -> None:
    found = recordings.examined(recordings.training(), tmp_path)
    view = viewdata.build(found.lead, found.ranks, ())
    raw = zlib.decompress(packed(view))
    size = struct.unpack("<I", raw[:4])[0]
    document = json.loads(raw[4 : 4 + size])
    lane = document["timeline"]["lanes"][0]
    at, length = lane["start"]["data"]
    assert view.timeline is not None
    assert raw[4 + size + at : 4 + size + at + length] == view.timeline.lanes[0].start.data


@pytest.mark.parametrize(
    ("value", "tidied"),
    [
        (float("nan"), None),
        (float("inf"), None),
        (1 / 3, 0.333333333),
        (2**60, 2**60),
        ({"a\x1b": ["\u202e"]}, {"a\\x1b": ["\\u202e"]}),
        ({"snippet": "  if x:\n    y\x00"}, {"snippet": "if x:\n  y\\x00"}),
    ],
)
def test_values_are_strict_and_visible(value: Any, tidied: Any) -> None:
    assert tidy(value) == tidied


def test_a_lone_surrogate_does_not_break_the_page() -> None:
    info = results.diagnosis().inputs[0]
    path = b"caf\xe9.json".decode("utf-8", "surrogateescape")
    page = render(results.diagnosis(inputs=(type(info)(path, "kineto", 0, 1),)), "html")
    page.encode("utf-8")
