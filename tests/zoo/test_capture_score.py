"""When the score of captured programs fails, by rows filled in by hand."""

from __future__ import annotations

import pytest
from zoo.capture.score import Score, Truth, failed

TRUTH = Truth("data_loading", (), ("DL101",), "loader", 7)


def _row(
    stated_ms: float = 10.0, *, line: int = 7, true_ms: tuple[float, float] = (10, 10)
) -> Score:
    return Score(
        "program",
        TRUTH,
        true_ms=true_ms,
        stated_ms=stated_ms,
        found="DL101",
        bottleneck="data_loading",
        line=line,
        exact=True,
        same_output=True,
        same_code=True,
        source="loader",
    )


def test_the_median_of_all_runs_counts() -> None:
    row = _row(13.0)
    assert row.wrong
    row.earlier = (_row(9.5), _row(10.4))
    assert row.error == pytest.approx(0.04)
    assert not row.wrong


def test_a_true_time_that_moves_by_itself_judges_nothing() -> None:
    assert not _row(13.0, true_ms=(10, 12)).wrong


def test_what_fails() -> None:
    right, late = _row(), _row(12.0)
    assert not failed([right] * 5)
    assert not failed([right, right, right, late, late])  # times of two programs in five
    assert failed([right, right, late, late, late])  # the usual time is off
    assert not failed([_row(8.0), _row(8.0), right, late, late])  # noise goes either way
    assert not failed([right] * 4 + [_row(line=8)])
    assert failed([right] * 3 + [_row(line=8)] * 2)
    changed = _row()
    changed.same_output = False
    assert failed([right] * 14 + [changed])
