"""The phases of a capture, driven by step boundaries of the program."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinetoscope.capture import sidecar
from kinetoscope.capture.boundaries import Marks, StepFinder
from kinetoscope.capture.compiling import CompileCalls, CompileEvents
from kinetoscope.capture.foreign import ForeignProfile
from kinetoscope.capture.loader_workers import collect, wrap_workers
from kinetoscope.capture.options import CaptureOptions
from kinetoscope.capture.pace import Pace
from kinetoscope.capture.plan import Plan, make_plan, typical_period
from kinetoscope.capture.ranks import MARGIN_S, MARGIN_STEPS, Agreement, Place
from kinetoscope.capture.recorder import Recorder
from kinetoscope.capture.seams import Seams
from kinetoscope.capture.watcher import HINT, TOO_SHORT, Watcher

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


class EnoughError(SystemExit):
    """Raised inside the program when `stop_after` is set and everything is recorded."""


@dataclass
class Recording:
    """What a capture left behind.

    Attributes:
        recorder: holds the file of each window, compressed, without our facts yet.
        facts: everything that goes into the sidecar.
        problems: what went wrong or is missing, for people.
    """

    recorder: Recorder
    facts: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


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
        self._until = 0
        self._lock = threading.Lock()
        self._queue: list[tuple[str, int]] = []
        self._agreement = Agreement(self.place)
        self._asked = 0.0
        self._steady = False
        self._pace = Pace()
        self._compiling = CompileEvents()
        self._compiled = CompileCalls()
        self._foreign = ForeignProfile(self._give_way)
        self.last_step = 0.0  # by `time.perf_counter`; 0 outside of steps that are recorded
        self._watcher = Watcher(self)

    # ---- entry ---------------------------------------------------------------------------

    def attach(self) -> None:
        """Torch is imported: watch its seams."""
        if self.options.find_steps:
            self.seams.install()
        self._watcher.start()
        wrap_workers(self.folder, self.seams.replace, self.recorder.batches_ahead)
        self.seams.also_undo(self._compiling.install())
        self._compiled.install(self.seams.replace)
        self._foreign.install(self.seams.replace)
        os.register_at_fork(after_in_child=self._abandon)

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

    def finish(self) -> Recording:
        """The program ended, or the capture was told to end: keep what there is."""
        if self.phase not in ("waiting", "done"):
            self.problem(f"{TOO_SHORT} {self.phase} phase")
        elif self.phase == "waiting":
            self.problem(self._why_nothing())
        self.recorder.give_up()
        self._leave()
        self.recorder.finish()
        self.recorder.lines["workers"] = collect(self.folder)
        return Recording(self.recorder, self._facts(), self.problems)

    def end_window(self, why: str) -> None:
        """End a window in the middle, in the thread of the steps; complete steps stay."""
        if self.phase in ("light", "full") and self.last_step:
            self.last_step = 0.0
            self.problem(f"the {self.phase} window ends early: {why}")
            self.recorder.give_up()
            self._until = self.index + 1

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
        self.recorder.plan = plan
        self._queue = [
            (phase, getattr(plan, phase))
            for phase in ("baseline", "light", "full", "lines", "samples")
            if getattr(plan, phase)
        ]
        self._next_phase()

    # ---- phases --------------------------------------------------------------------------

    def _advance(self) -> None:
        """A step ended in one of the phases."""
        self.last_step = 0.0  # our own work takes long at times, and is no step that does not come
        if self.index < self._until:
            self.recorder.next_step()
            self.last_step = time.perf_counter()
            return
        self.recorder.end_phase()
        self._next_phase()

    def _next_phase(self) -> None:
        if not self._queue:
            self._leave()
            if self.options.stop_after:
                raise EnoughError(0)
            return
        self.phase, steps = self._queue.pop(0)
        if self._foreign.active and self.phase in ("light", "full"):
            self.problem(f"no window is recorded: {_PROFILES_ITSELF}")
            self._next_phase()
            return
        warm = self.recorder.begin_phase(self.phase, steps)
        self.last_step = time.perf_counter()
        self._until = self.index + warm

    def _give_way(self) -> None:
        """The program starts a profile of its own."""
        if threading.get_ident() == self.thread:
            self.end_window(_PROFILES_ITSELF)

    def _leave(self) -> None:
        self.phase = "done"
        self._watcher.stop()
        self.seams.remove()

    def _abandon(self) -> None:
        """A forked child records nothing."""
        self.phase = "done"
        self.recorder.forget()

    # ---- what to say ---------------------------------------------------------------------

    def problem(self, text: str) -> None:
        """Say what is in the way, once, and keep it for the result."""
        if text not in self.problems:
            self.problems.append(text)
            self.say(text)

    def _why_nothing(self) -> str:
        marks = self.finder.current
        if "torch" not in sys.modules:
            return "the program never imported torch"
        if not self.finder.marks:
            return (
                "no step was seen: no optimizer step, DataLoader, backward, graph replay or module "
                f"call; {HINT}"
            )
        if marks is None or marks.count < 3:
            seen = max(m.count for m in self.finder.marks.values())
            return f"the program was too short: {seen} steps were seen, 3 are needed"
        return f"the program ended after {marks.count} steps, before they were steady"

    def _program_facts(self) -> dict[str, Any]:
        """What a trace lacks; {} when the program never imported torch."""
        if "torch" not in sys.modules:
            return {}
        return {
            "machine": sidecar.machine(),
            "settings": sidecar.settings(),  # replaced by those at the end of the baseline
            "environment": sidecar.environment(),
            "memory": sidecar.memory(),
            "compile_events": self._compiling.table(),
            "compile_calls": self._compiled.found,
            "modes": self.recorder.modes.facts(),
            **self.recorder.program_facts,
        }

    def _facts(self) -> dict[str, Any]:
        marks = self.finder.current
        return {
            "version": sidecar.VERSION,
            "facts": self._program_facts(),
            "steps": {
                "source": marks.kind if marks else None,
                "label": marks.label if marks else None,
                "seen": marks.count if marks else 0,
                "first_recorded": self.plan.start if self.plan else None,
                "steady": self.plan.steady if self.plan else False,
            },
            **self.recorder.facts(),
            "problems": list(self.problems),
        }
