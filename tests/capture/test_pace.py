"""The pace of a device that the host runs ahead of; the device is a clock here."""

from __future__ import annotations

import pytest

from kinetoscope.capture import pace
from kinetoscope.capture.pace import Pace


class Device:
    """Works `step_s` on each step that was issued; waiting for it moves the clock."""

    def __init__(self, step_s: float) -> None:
        self.now, self.step_s, self.done_at = 100.0, step_s, 100.0

    def issue(self, host_s: float) -> None:
        self.now += host_s
        self.done_at = max(self.done_at, self.now) + self.step_s

    def wait(self) -> None:
        self.now = max(self.now, self.done_at)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device(0.010)
    monkeypatch.setattr(pace, "_device_in_use", lambda: True)
    monkeypatch.setattr(pace, "_synchronize", made.wait)
    monkeypatch.setattr(pace.time, "perf_counter", lambda: made.now)
    return made


def _measure(device: Device, host_s: float) -> tuple[float, int]:
    found = Pace()
    for index in range(200):
        device.issue(host_s)
        step = found.measured(index, host_s)
        if step is not None:
            return step, index
    raise AssertionError("never measured")


def test_a_host_that_runs_ahead_does_not_set_the_pace(device: Device) -> None:
    for _ in range(50):
        device.issue(0.001)  # a queue of steps is there before anybody looks
    step, index = _measure(device, 0.001)
    assert step == pytest.approx(0.010, rel=0.1)
    assert index <= 10


def test_a_slow_host_sets_the_pace(device: Device) -> None:
    step, _ = _measure(device, 0.030)
    assert step == pytest.approx(0.030, rel=0.1)


def test_without_a_device_the_marks_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_device_in_use", lambda: False)
    assert Pace().measured(5, 0.02) == 0.02
