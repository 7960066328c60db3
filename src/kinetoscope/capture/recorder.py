"""Runs the phases, and keeps what they leave behind."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinetoscope.capture import device as devices
from kinetoscope.capture.baseline import Timed, summary, told
from kinetoscope.capture.files import Packer, return_memory
from kinetoscope.capture.lines import call_lines
from kinetoscope.capture.modes import Modes
from kinetoscope.capture.options import CaptureOptions
from kinetoscope.capture.phases import Again, Lines, Measure, Phase, Record, Samples
from kinetoscope.capture.plan import Plan, brief_steps, fitting_steps
from kinetoscope.capture.torch_parts import this_torch
from kinetoscope.capture.windows import Window

Problem = Callable[[str], None]

_FAILURES = (
    *(RuntimeError, OSError, AssertionError, ValueError, TypeError, AttributeError),
    *(ImportError, KeyError),
)
"""What a phase may raise. It costs us the phase; the program must not see it."""


_BLIND = (
    "the full window was left out: it holds no device events, although the light one does; record "
    "again for causes and lines"
)


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
        self._walker: threading.Thread | None = None
        self.plan: Plan | None = None
        self.ahead = 0
        self._facts: dict[str, Any] = {"windows": []}
        self._halves: list[Timed] = []
        self._again: set[str] = set()
        self._phase: Phase | None = None
        self.blind = False  # was the last window left out because it lacks device events?
        self._light_sees = False

    # ---- driven by the session -----------------------------------------------------------

    def begin_phase(self, name: str, steps: int) -> tuple[int, int]:
        """Begin a phase; returns the number of step boundaries until it records, and to its end."""
        if name == "full" and not self.together:
            steps = self._fitting(steps)
        try:
            phase = self._make(name)
            phase.begin()
        except _FAILURES as error:
            self.problem(devices.explain(name, error))
            return 0, 1
        self._phase = phase
        return phase.warm_up, steps + phase.warm_up

    def next_step(self) -> None:
        """A step ended, and the phase goes on."""
        self._guarded("next_step", self._phase)

    def marked(self, start_s: float) -> None:
        """A mark that began then is over; a baseline leaves it out."""
        if isinstance(self._phase, Measure | Again):
            self._phase.marked(round(start_s * 1e9), time.perf_counter_ns())

    def end_phase(self) -> None:
        """A step ended, and the phase with it."""
        self._guarded("end", self._taken())

    def hurry(self) -> int | None:
        """The steps before a window take too long: how many are left out; None when it records."""
        return self._phase.hurry() if isinstance(self._phase, Record) else None

    @property
    def interruptible(self) -> bool:
        """Can the phase be interrupted right here, in the middle of a step?"""
        return not isinstance(self._phase, Lines) or self._phase.interruptible

    def missing(self, name: str) -> bool:
        """Is this a window that has no complete step, and was it tried once only?"""
        again = name in ("light", "full") and name not in self.packers and name not in self._again
        self._again.add(name)
        return again

    def interrupt(self) -> None:
        """No step comes: stop what the phase costs.

        The modes of a lines phase may come back, with what torch restores after a backward pass;
        it is ended at the next boundary as well.
        """
        if isinstance(self._phase, Lines):
            self._guarded("end", self._phase)
        else:
            self.give_up()

    def give_up(self) -> None:
        """The program ended in the middle."""
        self._guarded("give_up", self._taken())

    def _taken(self) -> Phase | None:
        """The phase, which nobody else can end any more.

        A signal arrives while a phase ends: torch crashes when a profile is stopped twice.
        """
        phase, self._phase = self._phase, None
        return phase

    def forget(self) -> None:
        """In a forked child: the phase belongs to the parent.

        It is never destroyed here. Events of a device cannot be destroyed in a child, which has no
        device: torch would end the process, a worker of a loader for instance.
        """
        phase = self._taken()
        if phase is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(phase))
            self._guarded("abandon", phase)

    def batches_ahead(self, batches: int) -> None:
        """A loader with workers keeps so many batches ready."""
        self.ahead = max(self.ahead, batches)

    def _guarded(self, what: str, phase: Phase | None) -> None:
        if phase is None:
            return
        try:
            getattr(phase, what)()
        except _FAILURES as error:
            self._phase = None  # it is not stopped again: torch would stop what is not there
            self.problem(devices.explain(phase.name, error))

    def facts(self) -> dict[str, Any]:
        """Everything that was measured, for the sidecar."""
        return {**self._facts, "lines": self.lines}

    # ---- phases --------------------------------------------------------------------------

    def _make(self, name: str) -> Phase:
        if name == "baseline":
            return Measure(self, device=devices.in_use())
        if name == "second":
            return Again(self, device=devices.in_use())
        if name == "lines":
            return Lines(self)
        if name == "samples":
            return Samples(self)
        warm_up, device = self.plan.warm_up if self.plan else 1, devices.in_use()
        settle = device and name == "full"
        return Record(self, Window(name, device=device), warm_up, settle=settle)

    def _fitting(self, steps: int) -> int:
        light = self.packers.get("light")
        recorded = next((w for w in self._facts["windows"] if w["name"] == "light"), None)
        if light is None or recorded is None or recorded["cut"]:  # a step may hold anything then
            return steps
        done = max(recorded["steps"], 1)
        brief = brief_steps(steps, recorded["pause_ns"] / done, self.cycle)
        fitting = fitting_steps(brief, light.plain_bytes / done, self.options.size_bytes)
        if fitting < brief:
            self.problem(f"the full window has {fitting} of {steps} steps, to stay under the size")
        return fitting

    def timed(self, timed: Timed) -> None:
        """Note what steps take without a profiler: the first half, or the second one."""
        self._halves.append(timed)
        self._facts["baseline"] = summary(self._halves)
        full = self.plan.full if self.plan else 0
        for text in told(self._halves, full):
            self.problem(text)

    @property
    def step_s(self) -> float:
        """What a step took in the last half of the baseline, seconds; 0 before there is one."""
        return self._halves[-1].step_ns / 1e9 if self._halves else 0.0

    def forget_baseline(self) -> None:
        """It is timed again: its few steps came right after the program had been compiled."""
        self._halves.clear()

    @property
    def cycle(self) -> int:
        """Steps from one slow step to the next; 0 when none come regularly."""
        return self.plan.cycle if self.plan else 0

    @property
    def enough(self) -> bool:
        """At a step boundary: does a window end here though more steps were planned?"""
        return isinstance(self._phase, Record) and not self.together and self._phase.enough

    @property
    def busy(self) -> bool:
        """Is something of the windows still done in the background?"""
        walks = self._walker is not None and self._walker.is_alive()
        return walks or any(packer.busy for packer in self.packers.values())

    def keep(self, window: Window, facts: dict[str, Any], stopped: float) -> None:
        """Export a window; the rest is done in the background.

        Args:
            window: the window, after its end.
            facts: what is known about it.
            stopped: when the program began to stand still, by `time.perf_counter`.
        """
        plain = self.folder / f"{self.options.name}.{window.name}.json"
        window.export(plain)
        missing = "" if window.errors else devices.why_no_device_events(plain)
        self.blind = bool(missing) and self._light_sees
        if self.blind:
            plain.unlink()
            window.release()
            if window.name in self._again or self.together:
                self.problem(_BLIND)
            return
        self._light_sees = window.name == "light" and not missing and not window.errors
        if missing:
            self.problem(missing)
        self.packers[window.name] = Packer(plain, self.problem)
        if window.name == "full":
            self._walk(window.results)
        window.release()
        facts["pause_ns"] = round((time.perf_counter() - stopped) * 1e9)
        self._facts["windows"].append(facts)

    def _walk(self, results: Any) -> None:
        """Find the lines of calls while the program goes on, then give the memory back."""

        def work() -> None:
            try:
                self.lines["calls"] = call_lines(held.pop())
            except (AttributeError, TypeError) as error:
                self.problem(f"exact lines of calls are not known: {this_torch()} differs: {error}")
            return_memory()

        held = [results]
        self._walker = threading.Thread(target=work, name="kinetoscope-calls", daemon=True)
        self._walker.start()

    def finish(self) -> None:
        """Wait for what is done in the background."""
        if self._walker is not None:
            self._walker.join()
