"""Phases end once, whatever comes in between. Needs no torch."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from kinetoscope.capture import device
from kinetoscope.capture.options import CaptureOptions
from kinetoscope.capture.phases import Record
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

    def abandon(self) -> None:
        self.told.append("abandon")


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_never_destroys_what_the_phase_holds(tmp_path: Path) -> None:
    """Events of a device cannot be destroyed in a child: torch would end a loader's worker."""
    read, write = os.pipe()

    class Event:
        def __del__(self) -> None:
            os.write(write, b"destroyed")

    recorder = Recorder(tmp_path, CaptureOptions(), lambda _: None)
    phase = recorder._phase = _Phase(recorder)
    phase.event = Event()  # type: ignore[attr-defined]
    told = phase.told
    child = os.fork()
    if child == 0:
        del phase
        recorder.forget()
        recorder.__dict__.clear()
        gc.collect()
        os.write(write, told[-1].encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"abandon"


class _Window:
    """A window of three steps whose trace holds the given text."""

    steps = 3
    errors: frozenset[str] = frozenset()
    results = None

    def __init__(self, name: str, text: str = "") -> None:
        self.name = name
        self.text = text
        self.told: list[str] = []

    def prepare(self) -> None:
        self.told.append("prepare")

    def start(self) -> None:
        self.told.append("start")

    def next_step(self) -> None:
        self.told.append("step")

    def export(self, path: Path) -> None:
        path.write_text(self.text)

    def release(self) -> None:
        self.told.append("release")


_KERNELS = '{"traceEvents": [{"cat": "kernel"}]}'
_NONE = '{"traceEvents": [{"cat": "cuda_runtime", "name": "cudaLaunchKernel"}]}'


@pytest.mark.parametrize(
    ("light", "full", "kept", "blind"),
    [
        (_KERNELS, _KERNELS, {"light", "full"}, False),
        (_KERNELS, _NONE, {"light"}, True),
        (_NONE, _NONE, {"light", "full"}, False),
    ],
)
def test_a_full_window_that_lost_the_device_is_left_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    light: str,
    full: str,
    kept: set[str],
    blind: bool,
) -> None:
    monkeypatch.setattr(device, "in_use", lambda: True)
    monkeypatch.setattr(device, "missing_cupti", lambda: False)
    monkeypatch.setattr(Recorder, "_walk", lambda *_: None)
    said: list[str] = []
    recorder = Recorder(tmp_path, CaptureOptions(), said.append)
    windows = [_Window("light", light), _Window("full", full)]
    for window in windows:
        recorder.keep(window, {"name": window.name}, 0.0)  # type: ignore[arg-type]
    assert set(recorder.packers) == kept
    assert recorder.blind is blind
    assert all(window.told == ["release"] for window in windows)
    assert recorder.missing("full") is blind  # it is tried again, once
    assert not recorder.missing("full")
    assert not any("left out" in text for text in said)
    if blind:
        recorder.keep(_Window("full", full), {"name": "full"}, 0.0)  # type: ignore[arg-type]
        assert [text for text in said if "left out" in text]


def test_a_full_window_without_a_light_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "in_use", lambda: True)
    monkeypatch.setattr(device, "missing_cupti", lambda: False)
    monkeypatch.setattr(Recorder, "_walk", lambda *_: None)
    recorder = Recorder(tmp_path, CaptureOptions(), lambda _: None)
    recorder.keep(_Window("full", _NONE), {"name": "full"}, 0.0)  # type: ignore[arg-type]
    assert set(recorder.packers) == {"full"}


@pytest.mark.parametrize(
    ("settle", "told"),
    [
        (False, ["prepare", "", "start", "step"]),
        (True, ["", "prepare", "", "start", "step"]),
    ],
)
def test_one_step_passes_before_a_second_profile_is_set_up(
    tmp_path: Path, settle: bool, told: list[str]
) -> None:
    """CUPTI is detached by the program's next call of CUDA, and attached again after it."""
    window = _Window("full")
    recorder = Recorder(tmp_path, CaptureOptions(), lambda _: None)
    phase = Record(recorder, window, 2, settle=settle)  # type: ignore[arg-type]
    seen = []
    for boundary in [phase.begin, *[phase.next_step] * (phase.warm_up + 1)]:
        before = len(window.told)
        boundary()
        seen.append("".join(window.told[before:]))
    assert seen == told
