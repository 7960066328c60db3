"""Pages by the command line: from a recording with a view, from a saved result without one."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from kinetoscope.cli.analyze import command as analyze
from kinetoscope.cli.report import command as report
from tests import recordings


def _view(page: str) -> bytes:
    found = re.search('<script type="text/plain" id="view">([^<]*)</script>', page)
    assert found is not None
    return base64.b64decode(found[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("files")
    trace = recordings.training().write(made / "trace.json")
    words = [str(trace)]
    for name in ("page.html", "result.json", "log.sarif", "lines.annotations"):
        words += ["-o", str(made / name)]
    outcome = CliRunner().invoke(analyze, words, standalone_mode=False)
    assert outcome.exception is None, outcome.output
    return made


def test_a_recording_gives_a_page_with_a_view(folder: Path) -> None:
    assert len(_view((folder / "page.html").read_text(encoding="utf-8"))) > 1000
    assert (folder / "log.sarif").stat().st_size
    assert (folder / "lines.annotations").read_text(encoding="utf-8").startswith("::notice ")


def test_a_saved_result_gives_a_page_without_one(folder: Path) -> None:
    words = [str(folder / "result.json"), "-o", str(folder / "again.html")]
    outcome = CliRunner().invoke(report, words, standalone_mode=False)
    assert outcome.exception is None, outcome.output
    page = (folder / "again.html").read_text(encoding="utf-8")
    assert _view(page) == b""
    assert "DL101" in page


def test_a_page_on_stdout(folder: Path) -> None:
    words = [str(folder / "trace.json"), "--format", "html"]
    outcome = CliRunner().invoke(analyze, words, standalone_mode=False)
    assert outcome.output.startswith("<!doctype html>")
    assert len(_view(outcome.output)) > 1000
