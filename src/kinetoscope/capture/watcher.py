"""A thread that speaks up while a program runs and its steps do not come."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kinetoscope.capture.boundaries import Marks
from kinetoscope.capture.compiling import may_compile
from kinetoscope.capture.dispatch import compiles
from kinetoscope.capture.limits import INTERRUPTED
from kinetoscope.capture.main_thread import Soon

if TYPE_CHECKING:
    from kinetoscope.capture.session import Session

TOO_SHORT = "the program ended during the"
"""Begins what is said of a program that ends before the windows; the phase follows."""

HINT = "put kinetoscope.step() once into the loop"
CHILDREN = (
    "processes that the program starts itself are not captured: start one for each rank with "
    "torchrun -m kinetoscope run, or put kinetoscope.profile() around the loop in one of them; if "
    f"the steps are made here, {HINT}"
)

_SILENCE_S = 2.0
"""Seconds without any mark after which calls of modules are looked at."""
_LONG_SILENCE_S = 10.0
"""The same where something may be compiled: hooks would make it compile again."""
_TOLD_S = 20.0
_STALLED_S = 6.0
_STALLED_STEPS = 30
"""A window ends when for so long, and for the time of so many steps, no step came."""
_WORK_S = 1.0
"""Or when its thread worked for so long in one step, for the time of so many steps: each second of
Python or launches in a window costs several more until torch has written it."""
_CLOSE_S = 0.25
_LONG_STEPS = 5
"""Once the budget is over, when for the time of so many steps none came."""


class Watcher:
    """Looks at a session every two seconds, and more often while a window is open.

    Attributes:
        children: did the program, before any step, start processes of its own?
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="kinetoscope", daemon=True)
        self._stalled = Soon(self._end_window)
        self._told_stall = False
        self.children = False

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """All is recorded, or the program is over."""
        self._over.set()

    def _work(self) -> None:
        started = time.monotonic()
        told = False
        while not self._over.wait(self._pause_s()):
            waited = time.monotonic() - started
            if self._session.finder.marks:
                self._look_for_stall()
                continue
            self._look_for_modules(waited)
            self.children = self.children or _has_children()
            if waited >= _TOLD_S and not told:
                told = True
                hint = CHILDREN if self.children else HINT
                # Said only: steps that come after all are no problem of the result.
                self._session.say(f"no step seen in {waited:.0f} s so far; {hint}")

    def _pause_s(self) -> float:
        return _CLOSE_S if self._session.phase in INTERRUPTED else _SILENCE_S

    def _look_for_modules(self, waited: float) -> None:
        """Nothing else marks steps.

        Compiled modules mark themselves once they run; hooks would make them compile again.
        """
        if not self._session.options.find_steps or compiles():
            return
        if waited >= _LONG_SILENCE_S or not may_compile():
            self._session.seams.modules.discover()

    def _look_for_stall(self) -> None:
        """End a window whose steps stopped coming: what it records takes memory.

        Other phases cost nothing, and wait; that they do is said once.
        """
        session, silent = self._session, self._silent_s()
        if silent <= 0:
            return
        if session.phase in INTERRUPTED and session.thread == threading.main_thread().ident:
            self._stalled.ask()
        if silent >= _TOLD_S and not self._told_stall:
            self._told_stall = True
            session.say(f"no step for {silent:.0f} s; the capture waits ({session.label})")

    def _end_window(self) -> None:
        """In the main thread."""
        silent = self._silent_s()
        if silent > 0:
            self._session.interrupt(
                f"no step for {silent:.0f} s, as in an evaluation between epochs"
            )

    def _silent_s(self) -> float:
        """How long no step came inside a phase; 0 when that is not unusually long."""
        session, marks = self._session, self._session.finder.current
        if marks is None or not session.last_step:
            return 0.0
        silent = time.perf_counter() - session.last_step
        if silent > patience_s(marks.periods, session.options.budget_s) or self._works(marks):
            return silent
        return 0.0

    def _works(self, marks: Marks) -> bool:
        """Does the thread of the steps work so much that the window's events pile up?"""
        if self._session.phase not in INTERRUPTED or not hasattr(time, "pthread_getcpuclockid"):
            return False
        if marks.thread != threading.main_thread().ident:  # another one may be gone by now
            return False
        clock = time.pthread_getcpuclockid(marks.thread)
        worked = time.clock_gettime(clock) - self._session.worked_s
        return worked > max(_WORK_S, _STALLED_STEPS * max(marks.periods, default=0.0))


def _has_children() -> bool:
    """Does this process have children that `multiprocessing` started?

    `active_children` would reap those that ended, which is the program's to do.
    """
    process = sys.modules.get("multiprocessing.process")
    return bool(getattr(process, "_children", ()))


def patience_s(periods: Sequence[float], budget_s: float) -> float:
    """How long no step may come before a window ends, by the longest of the last steps."""
    usual = max(periods, default=0.0)
    patient = min(_STALLED_STEPS * usual, max(budget_s, _LONG_STEPS * usual))
    return max(_STALLED_S, patient)
