"""Which class a budget names, and when a program is healthy."""

from __future__ import annotations

import pytest

from kinetoscope.metrics.budget import BANDWIDTH_LABEL
from kinetoscope.result import Budget
from kinetoscope.result.vocabulary import BottleneckClass, BudgetClass
from kinetoscope.verdict import score

_ARITHMETIC = "matrix products, convolutions, attention"


def _lines(*parts: tuple[BudgetClass, str, float]) -> list[Budget]:
    return [Budget(class_, label, int(share * 1000), share) for class_, label, share in parts]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        # Kernels fill the step: the kind that takes most of their time names it.
        ([("compute", _ARITHMETIC, 0.7), ("memory", BANDWIDTH_LABEL, 0.25)], "compute"),
        ([("compute", _ARITHMETIC, 0.2), ("memory", BANDWIDTH_LABEL, 0.75)], "memory"),
        # A third of waiting for input is the bottleneck, although kernels take more.
        (
            [("compute", _ARITHMETIC, 0.6), ("data_loading", "waiting for the DataLoader", 0.33)],
            "data_loading",
        ),
        # Copies are waste of class memory, whatever the kernels are.
        (
            [("compute", _ARITHMETIC, 0.6), ("memory", "copies from host to device", 0.35)],
            "memory",
        ),
        # Little of everything is no bottleneck.
        (
            [
                ("compute", _ARITHMETIC, 0.65),
                ("framework", "launch latency", 0.12),
                ("communication", "communication that nothing hides", 0.11),
                ("data_loading", "waiting for the DataLoader", 0.10),
            ],
            "compute",
        ),
        ([("framework", "Python code", 0.8), ("compute", _ARITHMETIC, 0.1)], "framework"),
    ],
)
def test_the_class_of_a_budget(
    parts: list[tuple[BudgetClass, str, float]], expected: BottleneckClass
) -> None:
    assert score(_lines(*parts)).bottleneck == expected


def test_a_host_share_that_profiling_inflated_must_be_large() -> None:
    lines = _lines(("compute", _ARITHMETIC, 0.6), ("framework", "Python code", 0.35))
    assert score(lines).bottleneck == "framework"
    assert score(lines, inflated=True).bottleneck == "compute"


def test_unattributed_time_counts_for_no_class() -> None:
    lines = _lines(("compute", _ARITHMETIC, 0.4), ("unattributed", "unknown", 0.6))
    assert score(lines).share == pytest.approx(0.4)
