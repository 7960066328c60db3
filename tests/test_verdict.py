"""Which class a budget names, and when a program is healthy."""

from __future__ import annotations

import pytest

from kinetoscope.analysis import Analysis
from kinetoscope.analysis.budgeting import budget
from kinetoscope.metrics.budget import BANDWIDTH_LABEL
from kinetoscope.notes import notes_for
from kinetoscope.result import Budget
from kinetoscope.result.vocabulary import BottleneckClass, BudgetClass
from kinetoscope.testing import TraceBuilder
from kinetoscope.trace.job import Job
from kinetoscope.verdict import decide, score

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


def test_a_host_share_that_may_all_be_profiling_must_be_large() -> None:
    lines = _lines(("compute", _ARITHMETIC, 0.6), ("framework", "Python code", 0.35))
    assert score(lines).bottleneck == "framework"
    assert score(lines, unsure=True).bottleneck == "compute"


@pytest.mark.parametrize(
    ("kernel_us", "ops", "unsure"),
    [
        # 1,500 operators with shapes cost 2.3 us each: 10 ms are likely 6.5 ms, perhaps 4.5 ms.
        (5_500, 1_500, True),
        (4_000, 1_500, False),  # no step is as short as the kernel
        (9_900, 1_500, False),  # the kernel fills the likely step as well
        (5_500, 100, False),  # little of the host's time is profiling
    ],
)
def test_the_device_may_lead_where_it_fills_the_fastest_step(
    kernel_us: float, ops: int, unsure: bool
) -> None:
    t = TraceBuilder()
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.kernel("gemm", at + 20, kernel_us, launch_at=at + 5, launch_dur=5)
        for i in range(ops):
            t.op("aten::view", at + 100 + i * 9_800 / ops, 5, dims=[[4]])
    analysis = Analysis(t.read())
    assert analysis.what_if.device_may_lead is unsure
    if (kernel_us, ops) == (5_500, 1_500):
        # Nothing else is doubtful but the bracket, from 5.5 to 10 ms around 6.5 ms: 0.07.
        verdict = decide(analysis, budget(analysis), ())
        assert verdict.confidence == pytest.approx(0.95 - 0.07 - 0.15, abs=0.01)


def test_unattributed_time_counts_for_no_class() -> None:
    lines = _lines(("compute", _ARITHMETIC, 0.4), ("unattributed", "unknown", 0.6))
    assert score(lines).share == pytest.approx(0.4)


def _gap_note(*inside: tuple[str, str, float, float]) -> str:
    """The note on the gap of 800 us in which the host did this: how, name, start, length."""
    t = TraceBuilder()
    for at in (0, 1000, 2000, 3000):
        t.step(at, 1000)
        t.kernel("gemm", at + 800, 200, launch_at=at + 795, launch_dur=5)
        for how, name, start, length in inside:
            getattr(t, how)(name, at + start, length)
    analysis = Analysis(t.read())
    assert (analysis.gaps.end - analysis.gaps.start).tolist() == [800_000] * 3
    notes = notes_for(analysis, Job((analysis.trace,)))
    return " ".join(note for note in notes if "idle gap" in note)


def test_a_long_gap_is_named_by_a_call_that_fills_half_of_it() -> None:
    note = _gap_note(("python", "train.py(3): step", 0, 790), ("op", "aten::cat", 100, 410))
    assert note == (
        "One idle gap lasts 800 µs; meanwhile the host was in aten::cat "
        "called from step (train.py:3)."
    )


def test_a_long_gap_of_many_calls_is_named_by_the_function_that_fills_most_of_it() -> None:
    # The longest single event takes 150 us, the function 2 x 200 us.
    note = _gap_note(
        ("python", "train.py(3): step", 0, 790),
        ("python", "data.py(7): augment", 0, 200),
        ("op", "aten::roll", 50, 100),
        ("op", "aten::cat", 200, 150),
        ("python", "data.py(7): augment", 400, 200),
        ("op", "aten::roll", 450, 100),
    )
    assert note == (
        "One idle gap lasts 800 µs; meanwhile the host was in augment (data.py:7) for 400 µs of it."
    )


def test_a_long_gap_without_stacks_is_named_by_the_range() -> None:
    ops = [("op", "aten::cat", 100 + 60 * i, 50) for i in range(5)]
    note = _gap_note(("annotation", "read_batch", 100, 300), *ops)
    assert "in read_batch for 300 µs of it." in note


def test_a_long_gap_that_nothing_fills_is_not_named() -> None:
    ops = [("op", f"aten::op{i}", 50 + 100 * i, 90) for i in range(7)]
    assert _gap_note(*ops) == ""
