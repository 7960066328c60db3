"""The phases of a capture: what each does at its begin, at every step, and at its end."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Protocol

from kinetoscope.capture import device as devices
from kinetoscope.capture import objects, sidecar
from kinetoscope.capture.baseline import Baseline, Timed
from kinetoscope.capture.dispatch import OperatorLines, compiles
from kinetoscope.capture.plan import enough
from kinetoscope.capture.sampling import FrameSampler
from kinetoscope.capture.torch_parts import CALLBACKS, DISPATCH_MODE, FUNCTION_MODE
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

    def abandon(self) -> None:
        """This is a forked child, whose own work is neither recorded nor slowed down."""


class Measure:
    """The baseline's first half: no profiler, but samples of how busy the machine is."""

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

    def marked(self, start: int, end: int) -> None:
        """What a mark took."""
        self._baseline.marked(start, end)

    def end(self) -> None:
        """The last step ended."""
        self._baseline.next_step()
        self._keep(self._baseline.stop())
        self._recorder.program_facts["settings"] = sidecar.settings()
        self._recorder.program_facts.update(objects.describe())

    def give_up(self) -> None:
        """The steps so far are a measurement as well; a step that was cut off is not."""
        self._keep(self._baseline.stop())

    def abandon(self) -> None:
        """Nothing is active."""

    def _keep(self, timed: Timed | None) -> None:
        self._recorder.program_facts["utilisation"] = self._use.stop()
        if timed is not None:
            self._recorder.timed(timed)


class Again:
    """The baseline's second half, when nothing of the windows is left to do in the background.

    A program that ends before has only the first half.
    """

    name = "second"
    warm_up = 0

    def __init__(self, recorder: Recorder, *, device: bool) -> None:
        self._recorder = recorder
        self._baseline = Baseline(device=device)
        self._started = False

    def begin(self) -> None:
        """The phase begins, at a step boundary."""
        if not self._recorder.busy:
            self._started = True
            self._baseline.start()

    def next_step(self) -> None:
        """A step ended, and the phase goes on."""
        if self._started:
            self._baseline.next_step()
        else:
            self.begin()

    def marked(self, start: int, end: int) -> None:
        """What a mark took."""
        self._baseline.marked(start, end)

    def end(self) -> None:
        """The last step ended."""
        if self._started:
            self._baseline.next_step()
        self.give_up()

    def give_up(self) -> None:
        """The program ended: the steps so far count."""
        timed = self._baseline.stop()
        if timed is not None:
            self._recorder.timed(timed)

    def abandon(self) -> None:
        """Nothing is active."""


class Record:
    """A profiled window.

    Args:
        warm_up: steps before it that it waits for.
        settle: leave one more step between the window before and this one. CUPTI is detached by
            the program's next call of CUDA; a profile that is set up before that call has no
            device events.
    """

    def __init__(self, recorder: Recorder, window: Window, warm_up: int, *, settle: bool) -> None:
        self.name = window.name
        self.warm_up = warm_up + settle
        self._cold = self.warm_up
        self._prepared = not settle
        self._recorder = recorder
        self._window = window
        self._started = 0
        self._complete = 0  # when the last complete step ended
        self._worked = 0

    def begin(self) -> None:
        """The phase begins, at a step boundary."""
        if self._prepared:
            self._window.prepare()

    def next_step(self) -> None:
        """A step ended, and the phase goes on."""
        if self._started:
            self._window.next_step()
            self._complete = time.perf_counter_ns()
            return
        self._cold -= 1
        if not self._prepared:
            self._prepared = True
            self._window.prepare()
        if self._cold:
            return
        self._window.start()
        if self._window.errors:
            self._recorder.problem(devices.explain_cupti(self._window.errors))
        self._worked = time.thread_time_ns()
        self._started = time.perf_counter_ns()

    @property
    def enough(self) -> bool:
        """Would more steps let the program stand still for too long at the end?"""
        if not self._started or self.name != "full":
            return False
        worked = time.thread_time_ns() - self._worked
        return enough(self._window.steps + 1, worked, self._recorder.cycle)

    def hurry(self) -> int | None:
        """Record from this boundary on: the number of steps that are left out; None if it does."""
        if self._started:
            return None
        left_out, self._cold = self._cold - 1, 1
        return left_out

    def end(self) -> None:
        """The last step ended."""
        stopped = time.perf_counter()
        self._complete = round(stopped * 1e9)
        self._window.stop()
        self._keep(stopped)

    def give_up(self) -> None:
        """The program ended, or no step comes, in the middle of one."""
        if self._started:
            stopped = time.perf_counter()
            self._window.give_up()
            if self._window.steps:
                self._keep(stopped, cut=True)

    def abandon(self) -> None:
        """The profiler's hooks came along: they would record all that a loader's worker does."""
        if self._started:
            sys.setprofile(None)
            clear = CALLBACKS.get()
            if clear is not None:
                clear()

    def _keep(self, stopped: float, *, cut: bool = False) -> None:
        steps = max(self._window.steps, 1)
        step_ns = round((self._complete - self._started) / steps)
        facts = {"name": self.name, "steps": steps, "host_step_ns": step_ns, "cut": cut}
        self._recorder.keep(self._window, facts, stopped)


class Lines:
    """The attribution step: lines of operators that no call event stands for."""

    name = "lines"
    warm_up = 0

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._lines = OperatorLines()
        self._active = False

    def begin(self) -> None:
        """The phase begins, at a step boundary."""
        self._active = bool(FUNCTION_MODE.get() and DISPATCH_MODE.get()) and not compiles()
        if not self._active:
            return
        try:
            self._recorder.modes.start()
            self._lines.start()
        except (AttributeError, ImportError, TypeError):
            self.abandon()
            raise

    def next_step(self) -> None:
        """One step is enough."""

    @property
    def interruptible(self) -> bool:
        """Is no call on its way through the modes, which then could not be taken off?"""
        if not self._active or compiles():
            return True
        return self._lines.outermost and self._recorder.modes.outermost

    def end(self) -> None:
        """The last step ended."""
        self._lines.stop()
        self._recorder.modes.stop()
        self._recorder.lines["operators"] = self._lines.table()

    give_up = end

    def abandon(self) -> None:
        """The modes came along."""
        self._lines.stop()
        self._recorder.modes.stop()


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

    def abandon(self) -> None:
        """The sampler's thread did not come along, but what it set did."""
        self._sampler.put_back()
