"""The catalogue on the command line."""

from __future__ import annotations

import json
import re

import pytest

from kinetoscope.cli import run
from kinetoscope.rules.registry import all_rules

Capture = pytest.CaptureFixture[str]


def test_the_list_has_every_rule_in_a_line(capsys: Capture) -> None:
    assert run(["rules"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [rule.code for rule in all_rules()]
    for line, rule in zip(lines, all_rules(), strict=True):
        assert rule.name in line
        assert rule.summary in line


def test_the_page_of_a_rule(capsys: Capture) -> None:
    assert run(["rules", "DL101"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("# DL101 sync-dataloader-in-main-process\n")
    for part in ("## What it finds", "## Limits", "## Thresholds", "## Examples", "* Needs: "):
        assert part in page


@pytest.mark.parametrize("word", ["dl101", "DL101", "sync-dataloader-in-main-process"])
def test_a_rule_by_code_or_name(word: str, capsys: Capture) -> None:
    assert run(["rules", word]) == 0
    assert capsys.readouterr().out.startswith("# DL101 ")


def test_a_prefix_lists(capsys: Capture) -> None:
    assert run(["rules", "DL"]) == 0
    codes = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert codes == [rule.code for rule in all_rules() if rule.code.startswith("DL")]


def test_as_data(capsys: Capture) -> None:
    assert run(["rules", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["code"] for row in rows] == [rule.code for rule in all_rules()]
    first = next(row for row in rows if row["code"] == "DL101")
    assert first["class"] == "data_loading"
    assert all(set(t) == {"name", "value", "doc"} and t["doc"] for t in first["thresholds"])


@pytest.mark.parametrize(
    ("word", "near"),
    [("DL1O1", "DL101"), ("sync-dataloader-in-main", "DL101"), ("qqq", None)],
)
def test_near_misses(word: str, near: str | None, capsys: Capture) -> None:
    code = run(["rules", word])
    err = capsys.readouterr().err
    if near:
        assert code == 2
        assert re.search(f"Did you mean [^?]*{near}", err)
    else:
        assert code == 2
        assert "Did you mean" not in err
        assert "`kinetoscope rules` lists all." in err
