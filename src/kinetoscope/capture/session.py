"""The phases of a capture, driven by step boundaries of the program."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from kinetoscope.capture import device as devices
from kinetoscope.capture.attaching import attach
from kinetoscope.capture.boundaries import Marks, StepFinder
from kinetoscope.capture.compiling import CompileCalls, CompileEvents
from kinetoscope.capture.facts import facts, why_nothing
from kinetoscope.capture.foreign import ForeignProfile
from kinetoscope.capture.limits import FEW, INTERRUPTED, LABELS, MISSED, Limit
from kinetoscope.capture.loader_workers import collect
from kinetoscope.capture.main_thread import once
from kinetoscope.capture.options import PHASES, CaptureOptions
from kinetoscope.capture.outcome import EnoughError, Recording
from kinetoscope.capture.pace import Pace
from kinetoscope.capture.plan import Plan, make_plan, typical_period
from kinetoscope.capture.ranks import MARGIN_S, MARGIN_STEPS, Agreement, Place
from kinetoscope.capture.recorder import Recorder
from kinetoscope.capture.rhythm import rhythm
from kinetoscope.capture.seams import Seams
from kinetoscope.capture.sharing import current, set_current
from kinetoscope.capture.watcher import TOO_SHORT, Watcher
from kinetoscope.capture.windows import drop_prepared

Say = Callable[[str], None]

_PATIENCE = 0.34
"""Share of the budget after which a program that is not steady is recorded as it is."""
_LOOK_EVERY_S = 0.01
"""How often it is asked whether steps are steady: that takes some 10 us, much of a short step."""
_ASK_EVERY_S = 0.05
_PROFILES_ITSELF = (
    "the program uses torch.profiler itself and only one profile can be active; take it out for "
    "this run"
)


class Session:
    """One capture in this process. `note` is called at every mark that a seam sees."""

    def __init__(self, options: CaptureOptions, say: Say, place: Place | None = None) -> None:
        self.options = options
        self.say = say
        self.place = place or Place(0, 1, "")
        self.phase = "waiting"
        self.problems: list[str] = []
        self.finder = StepFinder()
        self.seams = Seams(self.note)
        self.index = 0
        self.plan: Plan | None = None
        self.folder = options.folder or Path(tempfile.mkdtemp(prefix="kinetoscope-"))
        self.recorder = Recorder(self.folder, options, self.problem, together=self.place.many)
        self._pid = os.getpid()
        self._first: float | None = None
        self._queue: list[tuple[str, int]] = []
        self._agreement = Agreement(self.place)
        self._limit = Limit(self._agreement)
        self._asked = 0.0
        self._steady = False
        self._pace = Pace()
        self.compiling = CompileEvents()
        self.compiled = CompileCalls()
        self.foreign = ForeignProfile(self._give_way, drop_prepared)
        self.last_step = 0.0  # by `time.perf_counter`; 0 outside of steps that are recorded
        self.worked_s = 0.0  # processor time of the thread of the steps, as of the last step
        self._watcher = Watcher(self)

    # ---- entry ---------------------------------------------------------------------------

    def attach(self) -> None:
        """Torch is imported: watch its seams."""
        attach(self)
        self._watcher.start()

    def note(self, kind: str, identity: int, label: str) -> None:
        """A seam was passed."""
        if self.phase == "done" or os.getpid() != self._pid:
            return
        now = time.perf_counter()
        thread = threading.get_ident()
        if kind == "module":
            self.recorder.modes.called()
        if self.phase == "waiting":
            if self._first is None:
                self._first = now
            if self.finder.note((kind, identity), label, thread, now):
                self._wait(now)
        elif (kind, identity) == self.finder.chosen and thread == self.thread:
            self.index += 1
            self._advance()
            self.recorder.marked(now)

    def finish(self) -> Recording:
        """The program ended, or the capture was told to end: keep what there is."""
        if self.phase not in ("waiting", "second", "done"):
            self.problem(f"{TOO_SHORT} {self.phase} phase")
        elif self.phase == "waiting":
            self.problem(why_nothing(self.finder, children=self._watcher.children))
        self.recorder.give_up()
        self._leave()
        self.recorder.finish()
        self.recorder.lines["workers"] = collect(self.folder)
        return Recording(self.recorder, facts(self), self.problems)

    def interrupt(self, why: str) -> None:
        """No step comes: end what costs something, in the thread of the steps."""
        once(lambda: self.recorder.interruptible, lambda: self._end_early(why))

    def _end_early(self, why: str, *, again: bool = True) -> None:
        """End a phase in the middle of a step; one without a complete step is tried again once."""
        if self.phase not in INTERRUPTED or not self.last_step:
            return
        self.last_step = 0.0
        self.problem(f"the {self.label} ends early: {why}")
        self.recorder.interrupt()
        self._limit.until = self.index + 1
        if again and self.recorder.missing(self.phase) and not self.place.many:
            self._queue.insert(0, (self.phase, getattr(self.plan, self.phase)))

    # ---- waiting -------------------------------------------------------------------------

    @property
    def thread(self) -> int:
        """The thread that makes the steps; -1 while that is not known."""
        marks = self.finder.current
        return marks.thread if marks else -1

    def _wait(self, now: float) -> None:
        """Is it time to begin?"""
        marks = self.finder.current
        if marks is None or marks.count < 3:
            return
        self.index = marks.count
        if self.plan is None:
            self.plan = self._decide(marks, now)
        if self.plan is not None and self.index >= self.plan.start:
            self._begin(self.plan)

    def _decide(self, marks: Marks, now: float) -> Plan | None:
        """The plan, once there is one: this rank's own, or that of the rank that leads."""
        if self._agreement.possible and not self._agreement.leads:
            return self._heard(now)
        if now - self._asked < _LOOK_EVERY_S:
            return None
        self._asked = now
        self._steady = self._steady or self.finder.steady()
        waited = now - (self._first or now)
        if not self._steady and waited < _PATIENCE * self.options.budget_s:
            return None
        period = self._pace.measured(self.index, typical_period(marks.periods))
        if period is None:
            self._asked = 0.0  # the next step may end the measurement
            return None
        if not self._steady:
            self.problem(
                f"the steps were not steady after {waited:.0f} s; they are recorded as they are"
            )
        together = self._agreement.possible
        ahead = MARGIN_STEPS + int(MARGIN_S / max(period, 1e-6)) if together else 0
        plan = make_plan(
            max(period, 1e-6),
            self.options,
            start=self.index + ahead,
            steady=self._steady,
            ahead=self.recorder.ahead,
            cycle=rhythm(marks.periods).cycle,
        )
        if together:
            self._agreement.publish(plan.as_dict())
        return plan

    def _heard(self, now: float) -> Plan | None:
        """What the leading rank said; asked for now and then only, since asking takes time."""
        if now - self._asked < _ASK_EVERY_S:
            return None
        self._asked = now
        told = self._agreement.ask()
        return Plan(**told) if told else None

    def _begin(self, plan: Plan) -> None:
        if self.index > plan.start and self.place.many:
            self.problem(f"rank {self.place.rank} heard of the windows too late")
        if not self.foreign.seen:
            devices.detach_after_profiles()
        self._take(plan)
        self._next_phase()

    def _take(self, plan: Plan) -> None:
        """Do all phases of this plan from now on."""
        if devices.stays_attached():
            plan = plan.timed_before()
        self.plan = self.recorder.plan = plan
        self._queue = [
            (phase, getattr(plan, phase)) for phase in PHASES[1:-1] if getattr(plan, phase)
        ]

    def _revise(self) -> None:
        """The baseline is over: were its steps far quicker than the plan took them to be?"""
        period, plan = self.recorder.step_s, self.plan
        if plan is None or not plan.far_too_slow(period) or self.place.many:
            return
        ahead, options = self.recorder.ahead, self.options
        self.recorder.forget_baseline()
        self._take(make_plan(period, options, start=plan.start, steady=plan.steady, ahead=ahead))

    # ---- phases --------------------------------------------------------------------------

    def _advance(self) -> None:
        """A step ended in one of the phases."""
        self.last_step = 0.0  # our own work takes long at times, and is no step that does not come
        going = self.index < self._limit.until and not self.recorder.enough
        if going and not self._late():
            self.recorder.next_step()
            self._step_begins()
            return
        self.recorder.end_phase()
        if self.phase == "baseline":
            self._revise()
        if self.recorder.blind and self.recorder.missing(self.phase) and not self.place.many:
            self._queue.insert(0, (self.phase, getattr(self.plan, self.phase)))
        self._next_phase()

    def _next_phase(self) -> None:
        if not self._queue:
            self._leave()
            if self.options.stop_after:
                if threading.current_thread() is threading.main_thread():
                    raise EnoughError(0)
                self.problem("another thread makes the steps, so the program runs on to its end")
            return
        self.phase, steps = self._queue.pop(0)
        if self.foreign.active and self.phase in ("light", "full"):
            self.problem(f"no window is recorded: {_PROFILES_ITSELF}")
            self._next_phase()
            return
        warm, until = self.recorder.begin_phase(self.phase, steps)
        self._step_begins()
        assert self.plan is not None  # noqa: S101 - there are no phases without one
        longest_s = self.plan.longest_s(self.phase, self.options.budget_s)
        self._limit.begin(self.phase, self.index + warm, self.index + until, longest_s)

    def _step_begins(self) -> None:
        self.last_step = time.perf_counter()
        self.worked_s = time.thread_time()

    def _late(self) -> bool:
        """Does the phase end here, because its steps take far too long?"""
        if not self._limit.late(self.index):
            return False
        left_out = self.recorder.hurry()
        if left_out is not None:
            self._limit.extend(left_out)
            return False
        if self.phase in MISSED and self._limit.done(self.index) < FEW:
            self.problem(
                f"the {self.label} ends after {self._limit.longest_s:.2g} s with "
                f"{self._limit.done(self.index)} steps: they take longer than before"
            )
        return True

    def _give_way(self) -> None:
        """The program starts a profile of its own."""
        if threading.get_ident() == self.thread and self.phase in ("light", "full"):
            self._end_early(_PROFILES_ITSELF, again=False)

    def _leave(self) -> None:
        self.phase = "done"
        self._watcher.stop()
        self.seams.remove()

    def abandon(self) -> None:
        """A forked child records nothing, unless it begins a capture of its own."""
        if current() is self:
            set_current(None)
        self.phase = "done"
        self.recorder.forget()

    @property
    def label(self) -> str:
        """The phase, for people."""
        return LABELS.get(self.phase, self.phase)

    # ---- what to say ---------------------------------------------------------------------

    def problem(self, text: str) -> None:
        """Say what is in the way, once, and keep it for the result."""
        if text not in self.problems:
            self.problems.append(text)
            self.say(text)
