"""`report` and what it shares with `analyze`: formats, files, colours, encodings."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kinetoscope.cli import run
from kinetoscope.compare import compare
from kinetoscope.report import RenderOptions, comparison, experiment, render
from tests import results
from tests.compare import sides
from tests.experiments import samples

COMMAND = [sys.executable, "-m", "kinetoscope"]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "result.json"
    path.write_text(render(results.diagnosis(), "json"), encoding="utf-8")
    return path


def _run(words: list[str], **environment: str) -> subprocess.CompletedProcess[bytes]:
    clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    return subprocess.run(
        [*COMMAND, *words], capture_output=True, check=False, env=clean | environment, timeout=60
    )


def test_json_is_all_there_is_on_stdout(
    saved: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    target = saved.parent / "again.json"
    assert run(["report", str(saved), "--format", "json", "-o", str(target)]) == 0
    out, err = capsysbinary.readouterr()
    assert json.loads(out) == json.loads(saved.read_bytes())
    assert target.read_bytes() == out == saved.read_bytes()
    assert err.decode() == f"wrote {target}\n"


def test_several_outputs(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    targets = [saved.parent / name for name in ("a.json", "a.md", "a.txt")]
    words = [word for target in targets for word in ("-o", str(target))]
    assert run(["report", str(saved), *words]) == 0
    assert "DATA LOADING" in capsys.readouterr().out
    assert targets[1].read_text(encoding="utf-8").startswith("## Kinetoscope: data loading")
    assert "DATA LOADING" in targets[2].read_text(encoding="utf-8")
    assert all(stat.S_IMODE(t.stat().st_mode) == 0o666 & ~_umask() for t in targets)
    assert len(list(saved.parent.iterdir())) == 4


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_link_stays_a_link(saved: Path) -> None:
    real, link = saved.parent / "real.md", saved.parent / "link.md"
    link.symlink_to(real)
    assert run(["report", str(saved), "-o", str(link)]) == 0
    assert link.is_symlink()
    assert real.read_text(encoding="utf-8").startswith("## ")


def test_from_stdin(saved: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "report", "-"], input=saved.read_bytes(), capture_output=True, check=True
    )
    assert "DATA LOADING" in done.stdout.decode()


@pytest.mark.parametrize(
    ("level", "code"), [("critical", 1), ("high", 1), ("info", 1), ("never", 0)]
)
def test_fail_on(saved: Path, level: str, code: int) -> None:
    assert run(["report", str(saved), "--fail-on", level]) == code


def test_fail_on_looks_at_the_level(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(render(results.diagnosis(findings=(results.PIN,)), "json"), encoding="utf-8")
    assert run(["report", str(path), "--fail-on", "high"]) == 0
    assert run(["report", str(path), "--fail-on", "medium"]) == 1


def test_damage_is_exit_code_4_unless_a_finding_fails(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(render(results.hostile(), "json"), encoding="utf-8")
    assert run(["report", str(path)]) == 4
    assert run(["report", str(path), "--fail-on", "low"]) == 1


def test_a_pipe_gets_no_colour(saved: Path) -> None:
    assert b"\x1b" not in _run(["report", str(saved)]).stdout


def test_colour_can_be_forced_and_refused(saved: Path) -> None:
    assert b"\x1b[" in _run(["report", str(saved)], FORCE_COLOR="1").stdout
    assert b"\x1b" not in _run(["report", str(saved)], FORCE_COLOR="1", NO_COLOR="1").stdout
    assert b"\x1b" not in _run(["report", str(saved), "--no-color"], FORCE_COLOR="1").stdout


def test_an_ascii_terminal(saved: Path) -> None:
    done = _run(["report", str(saved)], PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert b"####" in done.stdout


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "cp437"])
def test_names_beyond_the_encoding(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "r.json"
    info = results.hostile().inputs[0]
    path.write_text(render(results.hostile(), "json").replace("x1", "数据"), encoding="utf-8")
    assert info
    done = _run(["report", str(path)], PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    assert done.returncode == 4
    assert done.stderr == b""
    again = _run(["report", str(path), "--format", "json"], PYTHONIOENCODING=encoding)
    assert json.loads(again.stdout.decode("utf-8"))["schema_version"] == 1


def test_the_width_of_the_terminal(saved: Path) -> None:
    narrow = _run(["report", str(saved)], COLUMNS="40").stdout.decode()
    assert "1 CRITICAL  DL101\n" in narrow


def test_a_trace_given_to_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(b"\x1f\x8b\x08")
    assert run(["report", str(path)]) == 3
    assert "kinetoscope analyze" in capsys.readouterr().err


def test_a_report_shows_the_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader = results.LOADER
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(render(sides.run(40, findings=(loader,)), "json"))
    after.write_text(render(sides.run(10, findings=()), "json"))
    page, note = tmp_path / "page.html", tmp_path / "note.md"
    words = ["report", str(after), "--before", str(before), "-o", str(page), "-o", str(note)]
    assert run(words) == 0
    low, high = loader.gain.low, loader.gain.high
    for text in (capsys.readouterr().out, note.read_text()):
        flat = " ".join(text.split())
        assert "40.0 ms before, 10.0 ms after" in flat
        assert f"DL101 predicted {loader.gain.mid:.1f}x ({low:.1f}x to {high:.1f}x)" in flat
        assert "achieved 4.00x" in flat
    assert '"before":{"kind":"comparison"' in page.read_text()


def _saved(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_what_tune_measured_is_shown_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    made = samples.experiment()
    saved = _saved(tmp_path, "tuned.json", experiment.render(made, "json"))
    page, note = tmp_path / "page.html", tmp_path / "note.md"
    assert run(["report", saved, "-o", str(page), "-o", str(note)]) == 0
    shown = capsys.readouterr().out
    assert shown == experiment.render(made, "terminal", RenderOptions(width=100))
    assert note.read_text(encoding="utf-8") == experiment.render(made, "markdown")
    assert '"kind":"experiment"' in page.read_text(encoding="utf-8")
    assert run(["report", saved, "--format", "json"]) == 0
    assert capsys.readouterr().out == Path(saved).read_text(encoding="utf-8")


def test_a_comparison_is_shown_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    made = compare([sides.run(40)], [sides.run(20)])
    saved = _saved(tmp_path, "compared.json", comparison.render(made, "json"))
    assert run(["report", saved]) == 0
    assert capsys.readouterr().out == comparison.render(made, "terminal", RenderOptions(width=100))


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["--format", "sarif"], "--format sarif"),
        (["--before", "x.json"], "--before"),
        (["--fail-on", "high"], "--fail-on"),
    ],
)
def test_options_that_mean_nothing_for_what_tune_measured(
    words: list[str], option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = _saved(tmp_path, "tuned.json", experiment.render(samples.experiment(), "json"))
    assert run(["report", saved, *words]) == 2
    assert f"{option} is for the result of a diagnosis" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["compare", "analyze"])
def test_others_say_what_shows_it(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = _saved(tmp_path, "tuned.json", experiment.render(samples.experiment(), "json"))
    assert run([command, saved, *[saved] * (command == "compare")]) == 3
    err = capsys.readouterr().err
    assert "`kinetoscope report " in err
    assert "shows it again" in err
