"""A check for the test suite of a program: fails when a step takes more time than it did.

from kinetoscope.testing import assert_no_regression


def test_the_step_is_as_fast_as_before(tmp_path):
    traces = [record(tmp_path / f"{run}.json.gz") for run in range(3)]
    assert_no_regression(traces, against="tests/baseline.json", max_regression=0.05)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kinetoscope.compare import CompareOptions, compare
from kinetoscope.compare.regression import MAX_REGRESSION, judge
from kinetoscope.result.comparison import Comparison
from kinetoscope.runs import load_side


def assert_no_regression(
    paths: str | Path | Sequence[str | Path],
    *,
    against: str | Path,
    max_regression: float = MAX_REGRESSION,
    strict: bool = False,
    options: CompareOptions | None = None,
) -> Comparison:
    """Compare recordings with a baseline, and fail on a regression.

    Args:
        paths: the new recordings: traces, saved results or folders of repeated runs.
        against: the baseline, in the same forms, or a history file.
        max_regression: a step may take this much more time, as a share.
        strict: also fail while a regression is still possible, or the two are not comparable.
        options: of the comparison.

    Returns:
        The comparison, for further checks.

    Raises:
        AssertionError: a regression; the message says by how much and where.
    """
    comparison = compare(load_side(against), load_side(paths), options=options)
    answer = judge(comparison, max_regression=max_regression, strict=strict)
    if not answer.passed and (strict or answer.status == "regressed"):
        from kinetoscope.report.comparison import render

        raise AssertionError(f"{answer.sentence}\n\n{render(comparison, 'terminal')}")
    return comparison
