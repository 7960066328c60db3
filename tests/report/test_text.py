"""Nothing from a trace reaches a terminal raw."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.report.text import clean, clean_lines, shorten, to_ascii


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("void at::native::elementwise<4>(int)", "void at::native::elementwise<4>(int)"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb\tc", "a\\x0ab\\x09c"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\u200bzero", "\\u200bzero"),
        ("\x9b2J", "\\x9b2J"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("数据", "数据"),
        ("a\u00a0b", "a b"),
    ],
)
def test_clean(raw: str, shown: str) -> None:
    assert clean(raw) == shown


@given(st.text())
def test_clean_text_is_visible(raw: str) -> None:
    for char in clean(raw):
        assert char == " " or unicodedata.category(char)[0] in "LMNPS"


@given(st.text())
def test_ascii_is_ascii(raw: str) -> None:
    assert to_ascii(clean(raw)).isascii()


def test_snippets_keep_their_shape() -> None:
    assert clean_lines("    if x:\n\t\ty()\r\n") == ["if x:", "    y()"]
    assert clean_lines("\n\n") == []
    assert clean_lines("a\x1b\n" * 3, limit=2) == ["a\\x1b", "a\\x1b", "… 1 more lines"]


def test_shorten() -> None:
    assert shorten("short", 10) == "short"
    assert len(shorten("x" * 500, 40)) == 40
    assert shorten("begin" + "x" * 500 + "end", 30).startswith("begin")
    assert shorten("begin" + "x" * 500 + "end", 30).endswith("end")
