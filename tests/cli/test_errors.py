"""Every way to fail is a sentence, a next step and an exit code; never a traceback."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kinetoscope.cli import run
from kinetoscope.report import render
from tests import results

COMMAND = [sys.executable, "-m", "kinetoscope"]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "result.json"
    path.write_text(render(results.diagnosis(), "json"), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("words", "code", "message", "hint"),
    [
        (["analyse", "x"], 2, "analyse is not a command", "Did you mean `kinetoscope analyze`"),
        (["frobnicate"], 2, "frobnicate is not a command", "--help"),
        (["trace.json.gz"], 2, "trace.json.gz is not a command", "analyze trace.json.gz"),
        (["train.py"], 2, "train.py is not a command", "run train.py"),
        (["analyze"], 2, "Missing argument 'PATH...'", "analyze --help"),
        (["analyze", "x", "--what"], 2, "No such option", "analyze --help"),
        (["analyze", "x", "--fail-on", "dire"], 2, "'dire' is not one of", "analyze --help"),
        (["analyze", "x", "--real-step-ms", "0"], 2, "0.0 is not in the range", "--help"),
        (["analyze", "x", "--source-root", "/no/such"], 2, "does not exist", "--help"),
        (["analyze", "x", "-o", "a.pdf"], 2, "no format for the suffix '.pdf'", ".json, .md"),
        (["analyze", "x", "-o", "/no/such/a.md"], 2, "there is no folder /no/such", "mkdir -p"),
        (["analyze", "/no/such.json"], 3, "/no/such.json", ""),
        (["analyze", "-"], 3, "- does not exist", "save it to a file"),
        (["report", "/no/such.json"], 3, "/no/such.json: no such file", "-o result.json"),
        (["report", __file__], 3, "is not a saved result", "-o result.json"),
        (["rules", "XX999"], 2, "there is no rule XX999", "kinetoscope rules"),
    ],
)
def test_errors(
    words: list[str], code: int, message: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("kinetoscope: error: ")
    assert message in err
    assert hint in err
    assert "Traceback" not in err


def test_an_unexpected_error_asks_for_a_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], saved: Path
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("by \x1b[31mnothing")

    monkeypatch.setattr("kinetoscope.result.saved.decode_any", broken)
    assert run(["report", str(saved)]) == 70
    err = capsys.readouterr().err
    assert "unexpected ZeroDivisionError: by \\x1b[31mnothing" in err
    assert "KINETOSCOPE_DEBUG=1" in err
    assert "Traceback" not in err
    monkeypatch.setenv("KINETOSCOPE_DEBUG", "1")
    assert run(["report", str(saved)]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], saved: Path
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kinetoscope.result.saved.decode_any", interrupted)
    assert run(["report", str(saved)]) == 130
    assert capsys.readouterr().err == "kinetoscope: interrupted\n"


def test_a_reader_that_goes_away_is_no_error(saved: Path) -> None:
    """As in `| head`: enough output to fill the pipe, nobody reads it."""
    many = json.loads(saved.read_text(encoding="utf-8"))
    many["findings"] *= 2000
    saved.write_text(json.dumps(many), encoding="utf-8")
    words = [*COMMAND, "report", str(saved), "--all-findings"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 141


def test_an_output_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    saved: Path,
    tmp_path: Path,
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdopen", full)
    assert run(["report", str(saved), "-o", str(tmp_path / "a.md")]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result.json"]


def test_no_arguments_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    assert "Commands:" in capsys.readouterr().out


@pytest.mark.parametrize("width", [60, 80])
def test_no_command_is_described_by_half_a_sentence(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert run(["--help"]) == 0
    page = capsys.readouterr().out
    assert "..." not in page.partition("Commands:")[2]
    assert max(map(len, page.splitlines())) <= width


def test_help_is_quick() -> None:
    """150 ms of processor time; on a slow machine at most eight starts of a bare interpreter.

    Processor time, since the tests share the machine with each other.
    """
    bare = min(_seconds([sys.executable, "-c", "pass"]) for _ in range(5))
    best = min(_seconds([*COMMAND, "--help"]) for _ in range(5))
    assert best < max(0.15, 8 * bare)


def _seconds(words: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk(saved: Path, unbuffered: str) -> None:
    """The error comes with the first write, or with the last flush."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "report", str(saved)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == 2
    assert "the output cannot be written: No space left" in done.stderr
    assert "defect" not in done.stderr
