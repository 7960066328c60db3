"""The planted programs, unmodified: class, exact line, output and exit code. Skipped without torch.

`python -m zoo.capture.score` compares step times as well, which needs a quiet machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from zoo.capture.score import PROGRAMS, Score, fill, truth_of

from tests.capture.support import environment

pytest.importorskip("torch", reason="captures need torch")


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.py")), ids=lambda path: path.stem)
def test_the_planted_line_is_found(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "kinetoscope",
            "run",
            "--quiet",
            "--stop-after",
            "--budget",
            "20s",
            "-o",
            str(tmp_path / "r.json"),
            str(path),
            "100000000",
        ],
        env={**environment(), "PYTHONPATH": os.getcwd()},  # noqa: PTH109 - as a shell does
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    truth = truth_of(path)
    row = fill(Score(path.stem, truth, 1.0), json.loads((tmp_path / "r.json").read_text()))
    assert row.class_right, (row.bottleneck, truth.cls)
    assert row.line_right, (row.found, row.line, truth.line)
    if truth.steps:
        assert row.source == truth.steps
