"""Planted programs, unmodified: one for each means of finding the exact line. Needs torch.

`python -m zoo.capture.score` runs all of them and compares output, exit code and step time as well;
CI does so when nothing else runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from zoo.capture.score import PROGRAMS, Score, fill, truth_of

from tests.capture.support import environment

torch = pytest.importorskip("torch", reason="captures need torch")
OLD_DYNAMO = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
"""2.13 says which line set a guard on a number, 2.4 and 2.8 do not; others were not tried."""


MEANS = {
    "fw_optimizer_loop": "the line of a recorded call",
    "fw_index_loop": "the line of an operator without a call",
    "fw_python_loop": "samples of the main thread",
    "dl_workers": "samples in worker processes",
    "fw_graph_break": "Dynamo's message",
    "fw_recompile": "Dynamo's guard",
    "dl_accumulate": "samples, and steps that are not the loader's",
}


@pytest.mark.parametrize("name", MEANS)
def test_the_planted_line_is_found(name: str, tmp_path: Path) -> None:
    if OLD_DYNAMO and MEANS[name] == "Dynamo's guard":
        pytest.skip("this Dynamo names the guard that failed, but no line for it")
    path = PROGRAMS / f"{name}.py"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "kinetoscope",
            "run",
            "--quiet",
            "--stop-after",
            "--budget",
            "8s",
            "-o",
            str(tmp_path / "r.json"),
            str(path),
            "100000000",
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    truth = truth_of(path)
    row = fill(Score(name, truth, (1.0,)), json.loads((tmp_path / "r.json").read_text()))
    assert row.class_right, (row.bottleneck, truth.cls)
    assert row.line_right, (row.found, row.line, truth.line)
    assert row.source_right, row.source
