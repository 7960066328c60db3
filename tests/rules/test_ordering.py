"""The order of findings: causes before the symptom that they explain."""

from __future__ import annotations

from kinetoscope.result import Finding, Gain
from kinetoscope.result.finding import FindingClass, Severity
from kinetoscope.rules.ordering import ranked


def _finding(
    code: str, mid: float, severity: Severity = "critical", class_: FindingClass = "framework"
) -> Finding:
    return Finding(
        code=code,
        name=code,
        class_=class_,
        severity=severity,
        confidence=0.9,
        message="",
        gain=Gain(mid * 0.8, mid, mid * 1.25, basis="replay"),
    )


def test_a_cause_that_explains_a_good_part_comes_before_launching() -> None:
    """4x saves 75 % of the step, 1.6x saves 37.5 %: half of it."""
    order = ranked([_finding("FW501", 4.0), _finding("FW504", 1.6)])
    assert [f.code for f in order] == ["FW504", "FW501"]


def test_a_graph_has_to_wait_for_what_breaks_the_compiled_code() -> None:
    """4x saves 75 % of the step, 1.5x saves 33 %."""
    order = ranked([_finding("FW513", 4.0), _finding("FW510", 1.5)])
    assert [f.code for f in order] == ["FW510", "FW513"]


def test_a_small_cause_leaves_a_launch_bound_program_launch_bound() -> None:
    order = ranked([_finding("FW501", 8.0), _finding("FW503", 1.1, "medium")])
    assert [f.code for f in order] == ["FW501", "FW503"]


def test_a_slow_kernel_is_no_cause_of_slow_launching() -> None:
    order = ranked([_finding("FW501", 2.0), _finding("CP201", 1.5, class_="compute")])
    assert [f.code for f in order] == ["FW501", "CP201"]


def test_a_recording_that_proves_nothing_is_said_first() -> None:
    doubtful = Finding("PR911", "one-sided", "quality", "high", 0.9, "text")
    speed = Finding("IN601", "grad", "framework", "medium", 0.9, "text")
    assert [f.code for f in ranked([speed, doubtful])] == ["PR911", "IN601"]


def test_quality_comes_last() -> None:
    order = ranked([_finding("PR904", 1.0, "medium", "quality"), _finding("DL101", 1.1, "low")])
    assert [f.code for f in order] == ["DL101", "PR904"]
