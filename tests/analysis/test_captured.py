"""What a captured recording says of its own windows, by hand."""

from __future__ import annotations

from pathlib import Path

from kinetoscope import diagnose
from kinetoscope.analysis.captured import capture_notes
from kinetoscope.engine import examine
from kinetoscope.result import CaptureInfo
from kinetoscope.testing import TraceBuilder
from kinetoscope.viewdata.facts import facts

_MS = 1_000


def test_a_window_that_the_host_ran_ahead_of_is_timed_by_the_device(tmp_path: Path) -> None:
    """The host issues a step in 2 ms, of which the device needs 10."""
    t = TraceBuilder(device="NVIDIA H200")
    for step in range(6):
        t.step(step * 2 * _MS, 2 * _MS)
        for part in range(4):
            at = step * 2 * _MS + part * 400
            t.op("aten::mm", at + 10, 30)
            start = 50 + step * 10 * _MS + part * 2_500
            t.kernel("nvjet_tst_256x128", start, 2_500, launch_at=at + 20)
    t.sync(12 * _MS + 10, 48 * _MS + 30)
    t.header(
        kinetoscope={
            "version": 1,
            "baseline": {
                "steps": 50,
                "step_ns": 10_000_000,
                "low_ns": 9_900_000,
                "high_ns": 10_100_000,
            },
            "windows": [
                {"name": "light", "steps": 60, "host_step_ns": 2_000_000, "step_ns": 11_000_000},
                {"name": "full", "steps": 6, "host_step_ns": 2_000_000},
            ],
        }
    )
    found = diagnose(t.write(tmp_path / "t.json"))
    assert found.capture is not None
    assert [(w.name, w.steps, w.overhead) for w in found.capture.windows] == [
        ("light", 60, 0.1),
        ("full", 6, 0.0),
    ]
    assert any("light window +10 %, full window +0 %" in note for note in found.notes)


def _faulting(before: tuple[int, int], after: tuple[int, int]) -> TraceBuilder:
    """Four recorded steps of 4 ms; page faults and step time (ms) of both halves."""
    halves = [
        {
            "steps": 50,
            "step_ns": step * 1_000_000,
            "process_cpu_ns": step * 1_000_000 - 100_000,
            "minor_faults": faults,
            "system_cpu_ns": 2_000_000,
        }
        for faults, step in (before, after)
    ]
    t = TraceBuilder(device=None)
    for step in range(4):
        t.step(step * 4 * _MS, 4 * _MS)
        t.python("train.py(7): masks", step * 4 * _MS + 5, 500)
        t.op("aten::zeros", step * 4 * _MS + 10, 400)
        t.memory(6 << 20, 6 << 20, step * 4 * _MS + 20, device=-1)
        t.op("aten::add", step * 4 * _MS + 510, 3_400)
        t.memory(-(6 << 20), 0, step * 4 * _MS + 3_950, device=-1)
    spread = {"steps": 50, "step_ns": 10_000_000, "low_ns": 9_900_000, "high_ns": 10_100_000}
    t.header(kinetoscope={"version": 1, "baseline": spread | {"halves": halves}})
    return t


def test_page_faults_that_the_recorded_steps_lack_have_their_own_line(tmp_path: Path) -> None:
    """A step took 10 ms and 2.5 ms once the faults had ended; 4 ms of the ten were recorded."""
    found = diagnose(_faulting((2_900, 10), (3, 2)).write(tmp_path / "t.json"))
    first = found.budget[0]
    assert (first.class_, first.label, first.ns, first.share) == (
        "memory",
        "page faults",
        6_000_000,
        0.6,
    )
    assert sum(line.ns for line in found.budget) == 10_000_000
    assert abs(sum(line.share for line in found.budget) - 1.0) < 1e-4
    assert found.verdict.bottleneck == "memory"
    assert not any("same step" in note for note in found.notes)


def test_the_report_says_why_the_recorded_steps_are_shorter(tmp_path: Path) -> None:
    lead = examine([str(_faulting((2_900, 10), (3, 2)).write(tmp_path / "t.json"))]).lead
    (cost,) = (fact.text for fact in facts(lead) if fact.title == "Profiler's cost")
    assert "takes about 10.0 ms without the profiler: 0.40x, because page faults ended" in cost


def test_page_faults_are_found_by_what_their_end_gained(tmp_path: Path) -> None:
    found = diagnose(_faulting((2_900, 10), (3, 2)).write(tmp_path / "t.json"))
    (finding,) = (f for f in found.findings if f.code == "MM321")
    assert (finding.gain.low, finding.gain.mid, finding.gain.high) == (3.0, 5.0, 5.75)
    assert finding.gain.basis == "measured"
    assert finding.locations[0].function == "masks"
    assert "2,900 page faults" in finding.message
    assert "from 10.0 ms to 2.00 ms" in finding.message


def test_page_faults_that_go_on_cost_what_the_kernel_took(tmp_path: Path) -> None:
    """2 ms of 10 in the kernel: 10 / 8; half of it: 10 / 9; with 0.1 ms not run: 10 / 7.9."""
    found = diagnose(_faulting((2_900, 10), (2_900, 10)).write(tmp_path / "t.json"))
    (finding,) = (f for f in found.findings if f.code == "MM321")
    assert (finding.gain.low, finding.gain.mid, finding.gain.high) == (1.111, 1.25, 1.266)
    assert finding.gain.basis == "bound"
    assert all(line.label != "page faults" for line in found.budget)


def test_few_page_faults_are_not_why_the_pace_changed(tmp_path: Path) -> None:
    """Seventy faults take 0.7 ms at most, not the 2 ms between the halves."""
    found = diagnose(_faulting((70, 10), (0, 8)).write(tmp_path / "t.json"))
    assert all(line.label != "page faults" for line in found.budget)
    assert all(f.code != "MM321" for f in found.findings)


def test_a_fix_of_page_faults_gains_no_more_than_faults_can_take(tmp_path: Path) -> None:
    """Of the 6 ms between the halves 500 faults of 10 µs are five: 10 / 5, and half of that."""
    found = diagnose(_faulting((503, 10), (3, 4)).write(tmp_path / "t.json"))
    (finding,) = (f for f in found.findings if f.code == "MM321")
    assert (finding.gain.low, finding.gain.mid, finding.gain.high) == (1.5, 2.0, 2.3)


def test_page_faults_that_went_on_in_part_may_end_as_well(tmp_path: Path) -> None:
    """2 of 10 ms went with half of the faults but one: 10 / 8; with all, 10 / 6, and 15 % more."""
    found = diagnose(_faulting((4_000, 10), (1_999, 8)).write(tmp_path / "t.json"))
    (finding,) = (f for f in found.findings if f.code == "MM321")
    assert (finding.gain.mid, finding.gain.high) == (
        1.25,
        round(1.15 * 10 / (10 - 2 / 2_001 * 4_000), 3),
    )


def _paced(step_ms: int, median_ms: int) -> TraceBuilder:
    """Four recorded steps of 4 ms: 3 ms of a product, 1 ms of Python."""
    t = TraceBuilder(device=None)
    for step in range(4):
        t.step(step * 4 * _MS, 4 * _MS)
        t.python("train.py(7): step", step * 4 * _MS, 4 * _MS)
        t.op("aten::mm", step * 4 * _MS + 1_000, 3 * _MS)
    ns = {"step_ns": step_ms, "low_ns": step_ms, "high_ns": step_ms, "host_median_ns": median_ms}
    base = {"steps": 50} | {name: ms * 1_000_000 for name, ms in ns.items()}
    t.header(kinetoscope={"version": 1, "baseline": base})
    return t


def test_a_slower_pace_than_the_recorded_one_is_that_of_all_work(tmp_path: Path) -> None:
    """All steps took 8 ms instead of 4: each line doubles."""
    found = diagnose(_paced(8, 8).write(tmp_path / "t.json"))
    by_class = {line.class_: line.ns for line in found.budget}
    assert by_class == {"compute": 6_000_000, "framework": 2_000_000}


def test_slow_steps_that_were_not_recorded_are_nobodys(tmp_path: Path) -> None:
    """Most steps took 4 ms, some far more, for checkpoints: 12 ms in the mean."""
    found = diagnose(_paced(12, 4).write(tmp_path / "t.json"))
    first = found.budget[0]
    assert (first.class_, first.label, first.ns) == (
        "unattributed",
        "slow steps that were not recorded",
        8_000_000,
    )
    assert found.verdict.bottleneck == "undetermined"
    assert not any("same step" in note for note in found.notes)


def test_what_was_said_during_the_run_is_a_sentence_in_the_notes() -> None:
    said = ("the pace changed by 4 %",)
    info = CaptureInfo(step_source="user", step_label="step()", steady=True, problems=said)
    assert capture_notes(info) == ("The pace changed by 4 %.",)
