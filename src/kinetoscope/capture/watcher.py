"""A thread that speaks up while a program runs and its steps do not come."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

from kinetoscope.capture.dispatch import compiles
from kinetoscope.capture.main_thread import Soon

if TYPE_CHECKING:
    from kinetoscope.capture.session import Session

TOO_SHORT = "the program ended during the"
"""Begins what is said of a program that ends before the windows; the phase follows."""

HINT = "put kinetoscope.step() once into the loop"

_SILENCE_S = 2.0
"""Seconds without any mark after which calls of modules are looked at."""
_LONG_SILENCE_S = 10.0
_TOLD_S = 20.0
_STALLED_S = 6.0
_STALLED_STEPS = 30
"""A window ends when for so long, and for the time of so many steps, no step came."""


class Watcher:
    """Looks at a session every two seconds."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="kinetoscope", daemon=True)
        self._stalled = Soon(self._end_window)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """All is recorded, or the program is over."""
        self._over.set()

    def _work(self) -> None:
        started = time.monotonic()
        told = False
        while not self._over.wait(_SILENCE_S):
            waited = time.monotonic() - started
            if self._session.finder.marks:
                self._look_for_stall()
                continue
            self._look_for_modules(waited)
            if waited >= _TOLD_S and not told:
                told = True
                # Said only: steps that come after all are no problem of the result.
                self._session.say(f"no step seen in {waited:.0f} s so far; {HINT}")

    def _look_for_modules(self, waited: float) -> None:
        """Nothing else marks steps.

        Compiled modules mark themselves once they run; hooks would make them compile again.
        """
        dynamo = "torch._dynamo" in sys.modules
        if self._session.options.find_steps and not compiles():
            patient = not dynamo or waited >= _LONG_SILENCE_S
            if patient:
                self._session.seams.modules.discover()

    def _look_for_stall(self) -> None:
        """End a window whose steps stopped coming: what it records takes memory."""
        session = self._session
        if session.thread == threading.main_thread().ident and self._silent_s() > 0:
            self._stalled.ask()

    def _end_window(self) -> None:
        """In the main thread."""
        silent = self._silent_s()
        if silent > 0:
            self._session.end_window(
                f"no step for {silent:.0f} s, as in an evaluation between epochs"
            )

    def _silent_s(self) -> float:
        """How long no step came inside a window; 0 when that is not unusually long."""
        session, marks = self._session, self._session.finder.current
        if session.phase not in ("light", "full") or marks is None or not session.last_step:
            return 0.0
        silent = time.perf_counter() - session.last_step
        usual = max(marks.periods, default=0.0)
        return silent if silent > max(_STALLED_S, _STALLED_STEPS * usual) else 0.0
