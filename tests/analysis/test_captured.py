"""What a captured recording says of its own windows, by hand."""

from __future__ import annotations

from pathlib import Path

from kinetoscope import diagnose
from kinetoscope.analysis.captured import capture_notes
from kinetoscope.result import CaptureInfo
from kinetoscope.testing import TraceBuilder

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


def test_what_was_said_during_the_run_is_a_sentence_in_the_notes() -> None:
    said = ("the pace changed by 4 %",)
    info = CaptureInfo(step_source="user", step_label="step()", steady=True, problems=said)
    assert capture_notes(info) == ("The pace changed by 4 %.",)
