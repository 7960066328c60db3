"""Phases end once, whatever comes in between. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from kinetoscope.capture.options import CaptureOptions
from kinetoscope.capture.recorder import Recorder


class _Phase:
    """Notes what it is told; while it ends, a signal arrives and gives the capture up."""

    name = "full"
    warm_up = 0

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.told: list[str] = []

    def begin(self) -> None:
        self.told.append("begin")

    def next_step(self) -> None:
        self.told.append("next_step")

    def end(self) -> None:
        self.told.append("end")
        self.recorder.give_up()

    def give_up(self) -> None:
        self.told.append("give_up")
        raise OSError(28, "no space")


def test_a_phase_that_ends_is_not_given_up_as_well(tmp_path: Path) -> None:
    """Torch crashes when a profile that was stopped is stopped again and written."""
    said: list[str] = []
    recorder = Recorder(tmp_path, CaptureOptions(), said.append)
    phase = recorder._phase = _Phase(recorder)
    recorder.next_step()
    recorder.end_phase()
    recorder.end_phase()
    recorder.give_up()
    assert phase.told == ["next_step", "end"]
    assert said == []


def test_what_a_phase_cannot_write_is_said_and_the_program_goes_on(tmp_path: Path) -> None:
    said: list[str] = []
    recorder = Recorder(tmp_path, CaptureOptions(), said.append)
    recorder._phase = _Phase(recorder)
    recorder.give_up()
    assert said == ["the full window could not be written: no space"]
