"""The phases of a capture: what each does at its begin, at every step, and at its end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from kinetoscope.capture import device as devices
from kinetoscope.capture import objects, sidecar
from kinetoscope.capture.baseline import Baseline
from kinetoscope.capture.dispatch import OperatorLines, compiles
from kinetoscope.capture.sampling import FrameSampler
from kinetoscope.capture.utilisation import Utilisation
from kinetoscope.capture.windows import Window

if TYPE_CHECKING:
    from kinetoscope.capture.recorder import Recorder


class Phase(Protocol):
    """A phase: `next_step` comes at every step boundary between `begin` and `end`."""

    name: str
    warm_up: int

    def begin(self) -> None:
        """The phase begins, at a step boundary."""

    def next_step(self) -> None:
        """A step ended, and the phase goes on."""

    def end(self) -> None:
        """The last step ended."""

    def give_up(self) -> None:
        """The program ended, or no step comes, in the middle of one."""


class Measure:
    """The baseline: no profiler, but samples of how busy the machine is."""

    name = "baseline"
    warm_up = 0

    def __init__(self, recorder: Recorder, *, device: bool) -> None:
        self._recorder = recorder
        self._baseline = Baseline(device=device)
        self._use = Utilisation(device=device)

    def begin(self) -> None:
        """The phase begins, at a step boundary."""
        self._use.start()
        self._baseline.start()

    def next_step(self) -> None:
        """A step ended, and the phase goes on."""
        self._baseline.next_step()

    def end(self) -> None:
        """The last step ended."""
        self._baseline.stop()
        self._recorder.program_facts["utilisation"] = self._use.stop()
        self._recorder.program_facts["settings"] = sidecar.settings()
        self._recorder.program_facts.update(objects.describe())
        self._recorder.add("baseline", self._baseline.summary())

    def give_up(self) -> None:
        """The steps so far are a measurement as well; a step that was cut off is not."""
        self._recorder.program_facts["utilisation"] = self._use.stop()
        self._recorder.add("baseline", self._baseline.cut_off())


class Record:
    """A profiled window."""

    def __init__(self, recorder: Recorder, window: Window, warm_up: int) -> None:
        self.name = window.name
        self.warm_up = warm_up
        self._cold = warm_up
        self._recorder = recorder
        self._window = window
        self._started = 0

    def begin(self) -> None:
        """The phase begins, at a step boundary."""
        self._window.prepare()

    def next_step(self) -> None:
        """A step ended, and the phase goes on."""
        if self._started:
            self._window.next_step()
            return
        self._cold -= 1
        if self._cold:
            return
        self._window.start()
        if self._window.errors:
            self._recorder.problem(devices.explain_cupti(self._window.errors))
        self._started = time.perf_counter_ns()

    def end(self) -> None:
        """The last step ended."""
        stopped = time.perf_counter()
        self._window.stop()
        self._keep(stopped)

    def give_up(self) -> None:
        """The program ended, or no step comes, in the middle of one."""
        if self._started:
            stopped = time.perf_counter()
            self._window.give_up()
            if self._window.steps:
                self._keep(stopped)

    def _keep(self, stopped: float) -> None:
        elapsed = round(stopped * 1e9) - self._started
        steps = max(self._window.steps, 1)
        self._recorder.keep(
            self._window,
            {"name": self._window.name, "steps": steps, "host_step_ns": round(elapsed / steps)},
            stopped,
        )


class Lines:
    """The attribution step: lines of operators that no call event stands for."""

    name = "lines"
    warm_up = 0

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._lines = OperatorLines()

    def begin(self) -> None:
        """The phase begins, at a step boundary."""
        if not compiles():
            self._recorder.modes.start()
            self._lines.start()

    def next_step(self) -> None:
        """One step is enough."""

    def end(self) -> None:
        """The last step ended."""
        self._lines.stop()
        self._recorder.modes.stop()
        self._recorder.lines["operators"] = self._lines.table()

    give_up = end


class Samples:
    """Samples of Python frames: where host work happens inside a function."""

    name = "samples"
    warm_up = 0

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._sampler = FrameSampler()

    def begin(self) -> None:
        """The phase begins, at a step boundary."""
        self._sampler.start()

    def next_step(self) -> None:
        """The thread samples by itself."""

    def end(self) -> None:
        """The last step ended."""
        self._recorder.lines["samples"] = self._sampler.stop()

    give_up = end
