"""Recordings of planted programs on an H200, against what was measured without a profiler.

`zoo/trim.py` cut them; TRUTH.json holds the planted line's function, the class of the cause, and
the speed-up of the fixed program. Nothing in it was written by Kinetoscope.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from zoo.score import score_case

FOLDER = Path(__file__).parent / "recordings"
TRUTH: dict[str, dict[str, Any]] = json.loads((FOLDER / "TRUTH.json").read_text())
PLANTED = [case for case, truth in TRUTH.items() if truth["codes"]]
HEALTHY = [case for case, truth in TRUTH.items() if not truth["codes"]]


@pytest.mark.parametrize("case", PLANTED)
def test_planted(case: str) -> None:
    score = score_case(FOLDER, case, TRUTH[case], "slow")
    assert score is not None
    assert score.class_right, score.bottleneck
    assert score.cause_right, score.top
    assert score.function_right is not False, score.top
    assert score.gain_right, (score.gain, TRUTH[case]["speedup"])


@pytest.mark.parametrize("case", HEALTHY)
def test_healthy(case: str) -> None:
    score = score_case(FOLDER, case, TRUTH[case], "slow")
    assert score is not None
    assert score.class_right, score.bottleneck
    assert score.alarms == ()


def test_there_are_cases_of_every_class() -> None:
    classes = {TRUTH[case]["class"] for case in PLANTED}
    assert classes == {"compute", "memory", "data_loading", "communication", "framework"}
    assert len(HEALTHY) >= 6


def test_every_recording_is_small_and_has_a_truth() -> None:
    for path in FOLDER.glob("*.gz"):
        assert path.name.partition(".")[0] in TRUTH
        assert path.stat().st_size < 100_000
