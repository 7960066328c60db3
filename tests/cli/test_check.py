"""`kinetoscope check` and the pytest helper."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinetoscope.cli import run
from kinetoscope.testing import assert_no_regression
from tests.cli.test_compare import save

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(("step", "code"), [(20, 0), (40, 0), (42, 5), (60, 1)])
def test_exit_codes(tmp_path: Path, step: float, code: int, capsys: Capture) -> None:
    base, new = save(tmp_path / "base.json", 40), save(tmp_path / "new.json", step)
    assert run(["check", str(new), "--against", str(base)]) == code
    assert capsys.readouterr().err.split()[0].strip(".:") in (
        *("Improved", "Passed", "Undecided", "Regression"),
    )


def test_the_limit_is_the_callers(tmp_path: Path) -> None:
    base, new = save(tmp_path / "base.json", 40), save(tmp_path / "new.json", 44)
    assert run(["check", str(new), "--against", str(base)]) == 1
    assert run(["check", str(new), "--against", str(base), "--max-regression", "15%"]) == 0


def test_the_summary_is_appended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, new = save(tmp_path / "base.json", 40), save(tmp_path / "new.json", 60)
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert run(["check", str(new), "--against", str(base)]) == 1
    text = summary.read_text()
    assert text.startswith("before\nRegression")
    assert "## Kinetoscope: slower" in text


def test_a_history_grows_and_is_a_baseline(tmp_path: Path) -> None:
    base, new = save(tmp_path / "base.json", 40), save(tmp_path / "new.json", 40.2)
    history = tmp_path / "history.jsonl"
    for _ in range(2):
        assert run(["check", str(new), "--against", str(base), "--append", str(history)]) == 0
    assert len(history.read_text().splitlines()) == 2
    slow = save(tmp_path / "slow.json", 60)
    assert run(["check", str(slow), "--against", str(history), "--append", str(history)]) == 1
    assert len(history.read_text().splitlines()) == 2, "a regression is no baseline"


def test_a_history_begins_with_the_first_runs(tmp_path: Path, capsys: Capture) -> None:
    first, history = save(tmp_path / "first.json", 40), str(tmp_path / "history.jsonl")
    options = ["--against", history, "--append", history]
    assert run(["check", str(first), *options]) == 0
    assert "this is its beginning" in capsys.readouterr().err
    assert run(["check", str(save(tmp_path / "slow.json", 60)), *options]) == 1
    assert run(["check", str(first), "--against", str(tmp_path / "no.jsonl")]) == 3


def test_the_pytest_helper(tmp_path: Path) -> None:
    base, fast = save(tmp_path / "base.json", 40), save(tmp_path / "fast.json", 30)
    slow = save(tmp_path / "slow.json", 60)
    assert assert_no_regression(fast, against=base).verdict.outcome == "faster"
    with pytest.raises(AssertionError, match=r"Regression: a step takes 50\.0 % more time"):
        assert_no_regression(slow, against=base)
    with pytest.raises(AssertionError, match="Undecided"):
        assert_no_regression(save(tmp_path / "n.json", 42), against=base, strict=True)
