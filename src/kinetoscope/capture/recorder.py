"""What each phase does, and what it leaves behind."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from kinetoscope.capture import device as devices
from kinetoscope.capture import objects, sidecar
from kinetoscope.capture.baseline import Baseline
from kinetoscope.capture.dispatch import OperatorLines, compiles
from kinetoscope.capture.files import Packer
from kinetoscope.capture.lines import call_lines
from kinetoscope.capture.modes import Modes
from kinetoscope.capture.options import CaptureOptions
from kinetoscope.capture.plan import Plan, fitting_steps
from kinetoscope.capture.sampling import FrameSampler
from kinetoscope.capture.utilisation import Utilisation
from kinetoscope.capture.windows import Window

Problem = Callable[[str], None]

_FAILURES = (RuntimeError, OSError, AssertionError, ValueError, TypeError, AttributeError)
"""What a phase may raise. It costs us the phase; the program must not see it."""


class _Phase(Protocol):
    """A phase: `next_step` comes at every step boundary between `begin` and `end`."""

    warm_up: int

    def begin(self) -> None: ...

    def next_step(self) -> None: ...

    def end(self) -> None: ...

    def give_up(self) -> None: ...


class Recorder:
    """Runs the phases of one capture."""

    def __init__(
        self, folder: Path, options: CaptureOptions, problem: Problem, *, together: bool = False
    ) -> None:
        self.folder = folder
        self.options = options
        self.problem = problem
        self.together = together  # ranks keep to the plan: their windows are the same
        self.packers: dict[str, Packer] = {}
        self.lines: dict[str, Any] = {}
        self.program_facts: dict[str, Any] = {}
        self.modes = Modes()
        self.plan: Plan | None = None
        self.ahead = 0
        self._facts: dict[str, Any] = {"windows": []}
        self._phase: _Phase | None = None

    # ---- driven by the session -----------------------------------------------------------

    def begin_phase(self, name: str, steps: int) -> int:
        """Begin a phase; returns the number of step boundaries until its end."""
        if name == "full" and not self.together:
            steps = self._fitting(steps)
        phase = self._make(name)
        try:
            phase.begin()
        except _FAILURES as error:
            self.problem(devices.explain(name, error))
            return 1
        self._phase = phase
        return steps + phase.warm_up

    def next_step(self) -> None:
        """A step ended, and the phase goes on."""
        self._guarded("next_step")

    def end_phase(self) -> None:
        """A step ended, and the phase with it."""
        self._guarded("end")
        self._phase = None

    def give_up(self) -> None:
        """The program ended in the middle."""
        self._guarded("give_up")
        self._phase = None

    def forget(self) -> None:
        """In a forked child: the phase belongs to the parent."""
        self._phase = None

    def batches_ahead(self, batches: int) -> None:
        """A loader with workers keeps so many batches ready."""
        self.ahead = max(self.ahead, batches)

    def _guarded(self, what: str) -> None:
        if self._phase is None:
            return
        try:
            getattr(self._phase, what)()
        except _FAILURES as error:
            self._phase = None  # it is not stopped again: torch would stop what is not there
            self.problem(devices.explain("recording", error))

    def facts(self) -> dict[str, Any]:
        """Everything that was measured, for the sidecar."""
        return {**self._facts, "lines": self.lines}

    # ---- phases --------------------------------------------------------------------------

    def _make(self, name: str) -> _Phase:
        if name == "baseline":
            return _Measure(self, device=devices.in_use())
        if name == "lines":
            return _Lines(self)
        if name == "samples":
            return _Samples(self)
        warm_up = self.plan.warm_up if self.plan else 1
        return _Record(self, Window(name, device=devices.in_use()), warm_up)

    def _fitting(self, steps: int) -> int:
        light = self.packers.get("light")
        recorded = next((w for w in self._facts["windows"] if w["name"] == "light"), None)
        if light is None or recorded is None:
            return steps
        fitting = fitting_steps(
            steps, light.plain_bytes / max(recorded["steps"], 1), self.options.size_bytes
        )
        if fitting < steps:
            self.problem(f"the full window has {fitting} of {steps} steps, to stay under the size")
        return fitting

    def add(self, name: str, value: Any) -> None:
        """Note one fact."""
        self._facts[name] = value

    def keep(self, window: Window, facts: dict[str, Any]) -> None:
        """Export a window and compress it in the background."""
        plain = self.folder / f"{self.options.name}.{window.name}.json"
        started = time.perf_counter()
        if window.name == "full":
            self.lines["calls"] = call_lines(window.results)
        window.export(plain)
        facts["pause_ns"] = round((time.perf_counter() - started) * 1e9)
        self._facts["windows"].append(facts)
        free = shutil.disk_usage(self.folder).free
        if free < plain.stat().st_size:
            self.problem(f"{self.folder} is nearly full: {free // 1_000_000} MB are left")
        self.packers[window.name] = Packer(plain)
        missing = devices.why_no_device_events(plain) if window.name == "light" else ""
        if missing:
            self.problem(missing)


class _Measure:
    """The baseline: no profiler, but samples of how busy the machine is."""

    warm_up = 0

    def __init__(self, recorder: Recorder, *, device: bool) -> None:
        self._recorder = recorder
        self._baseline = Baseline(device=device)
        self._use = Utilisation(device=device)

    def begin(self) -> None:
        self._use.start()
        self._baseline.start()

    def next_step(self) -> None:
        self._baseline.next_step()

    def end(self) -> None:
        self._baseline.stop()
        self._recorder.program_facts["utilisation"] = self._use.stop()
        self._recorder.program_facts["settings"] = sidecar.settings()
        self._recorder.program_facts.update(objects.describe())
        self._recorder.add("baseline", self._baseline.summary())

    def give_up(self) -> None:
        """The steps so far are a measurement as well; a step that was cut off is not."""
        self._recorder.program_facts["utilisation"] = self._use.stop()
        self._recorder.add("baseline", self._baseline.cut_off())


class _Record:
    """A profiled window."""

    def __init__(self, recorder: Recorder, window: Window, warm_up: int) -> None:
        self.warm_up = warm_up
        self._cold = warm_up
        self._recorder = recorder
        self._window = window
        self._started = 0

    def begin(self) -> None:
        self._window.prepare()

    def next_step(self) -> None:
        if self._started:
            self._window.next_step()
            return
        self._cold -= 1
        if self._cold:
            return
        self._window.start()
        self._started = time.perf_counter_ns()

    def end(self) -> None:
        self._window.stop()
        self._keep()

    def give_up(self) -> None:
        if self._started:
            self._window.give_up()
            if self._window.steps:
                self._keep()

    def _keep(self) -> None:
        elapsed = time.perf_counter_ns() - self._started
        steps = max(self._window.steps, 1)
        self._recorder.keep(
            self._window,
            {"name": self._window.name, "steps": steps, "host_step_ns": round(elapsed / steps)},
        )


class _Lines:
    """The attribution step: lines of operators that no call event stands for."""

    warm_up = 0

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._lines = OperatorLines()

    def begin(self) -> None:
        if not compiles():
            self._recorder.modes.start()
            self._lines.start()

    def next_step(self) -> None:
        """One step is enough."""

    def end(self) -> None:
        self._lines.stop()
        self._recorder.modes.stop()
        self._recorder.lines["operators"] = self._lines.table()

    give_up = end


class _Samples:
    """Samples of Python frames: where host work happens inside a function."""

    warm_up = 0

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._sampler = FrameSampler()

    def begin(self) -> None:
        self._sampler.start()

    def next_step(self) -> None:
        """The thread samples by itself."""

    def end(self) -> None:
        self._recorder.lines["samples"] = self._sampler.stop()

    give_up = end
