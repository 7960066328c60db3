"""Annotations cannot be broken out of."""

from __future__ import annotations

import msgspec
import pytest

from kinetoscope.report import render
from kinetoscope.report.github import COMMANDS, command
from kinetoscope.result.finding import SEVERITIES
from tests import results


def test_a_line_for_the_verdict_and_each_finding() -> None:
    verdict, loader, leak = render(results.diagnosis(), "github").splitlines()
    assert verdict.startswith("::notice title=Kinetoscope::The GPU waits")
    assert loader.startswith(
        "::error file=cases.py,line=42,title=DL101 sync-dataloader-in-main-process::"
    )
    assert "79 %25 of each step" in loader
    assert leak.startswith("::warning title=MM305 ")


def test_every_severity_has_a_command() -> None:
    assert set(COMMANDS) == set(SEVERITIES)
    assert set(COMMANDS.values()) == {"error", "warning", "notice"}


@pytest.mark.parametrize(
    ("text", "shown"), [("a,b", "a%2Cb"), ("C:/x", "C%3A/x"), ("50 %", "50 %25")]
)
def test_properties_are_escaped(text: str, shown: str) -> None:
    assert command("notice", {"file": text}, "m") == f"::notice file={shown}::m"


def test_hostile_texts_stay_on_their_line() -> None:
    finding = msgspec.structs.replace(
        results.LOADER, message="a\n::error::b\r%0A", name="x::y,file=z"
    )
    page = render(results.diagnosis(findings=(finding,)), "github")
    assert len(page.splitlines()) == 2
    assert page.count("\n::error") == 1
    assert "title=DL101 x%3A%3Ay%2Cfile=z::" in page
    assert all(line.startswith("::") for line in render(results.hostile(), "github").splitlines())
