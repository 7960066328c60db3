"""Runs a program under a capture, however it ends."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

from kinetoscope.capture.import_hook import after_import
from kinetoscope.capture.options import CaptureOptions
from kinetoscope.capture.outcome import EnoughError, Recording
from kinetoscope.capture.program import Program, without_own_frames
from kinetoscope.capture.ranks import Place
from kinetoscope.capture.session import Session
from kinetoscope.capture.sharing import set_current
from kinetoscope.errors import UsageError

Say = Callable[[str], None]


@dataclass(frozen=True)
class Ending:
    """How the program ended.

    Attributes:
        code: its exit code.
        how: finished, stopped (by `--stop-after`), exited, raised, interrupted, terminated.
    """

    code: int
    how: str


Finish = Callable[[Recording, Ending], None]

_ENDING = tuple(
    number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None
)
"""Signals that end a program which does not ask for them."""


def run_program(
    program: Program, options: CaptureOptions, place: Place, finish: Finish, *, say: Say
) -> int:
    """Run the program, hand what was recorded to `finish`, and return the program's exit code."""
    last = _LastExit()
    session = Session(options, say, place)
    set_current(session)
    once = _Once(session, finish)

    after_import("torch", session.attach)
    with _ExitsWatched(once):
        ending = _ending_of(program)
        once.finish(ending)
    last.interrupted = ending.how == "interrupted"
    return ending.code


def run_alone(program: Program) -> int:
    """Run the program without a capture."""
    last = _LastExit()
    ending = _ending_of(program)
    last.interrupted = ending.how == "interrupted"
    return ending.code


class _Once:
    """Finishes the capture once, whoever asks first."""

    def __init__(self, session: Session, finish: Finish) -> None:
        self._session = session
        self._finish = finish
        self._pid = os.getpid()
        self._done = False

    def finish(self, ending: Ending) -> None:
        if self._done or os.getpid() != self._pid:
            return
        self._done = True
        set_current(None)
        self._finish(self._session.finish(), ending)


def _ending_of(program: Program) -> Ending:
    """Run the program, and show what it raises as Python would."""
    try:
        program.run()
    except EnoughError:
        return Ending(0, "stopped")
    except SystemExit as stop:
        return Ending(_exit_code(stop.code), "exited")
    except UsageError:
        raise
    except KeyboardInterrupt as error:
        _show(error)
        return Ending(130, "interrupted")
    except BaseException as error:  # whatever it is, Python would show it
        _show(error)
        return Ending(1, "raised")
    return Ending(0, "finished")


class _LastExit:
    """Ends by SIGINT itself after Ctrl-C, as Python does: a shell then ends its loop as well.

    Registered before the program registers exit handlers, it is called after all of them.
    """

    def __init__(self) -> None:
        self.interrupted = False
        atexit.register(self._die)

    def _die(self) -> None:
        if not self.interrupted or os.name != "posix":
            return
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def _exit_code(code: Any) -> int:
    """As Python does: None is 0, text is printed and 1."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if code >= 0 else code % 256
    print(code, file=sys.stderr)  # noqa: T201 - what `sys.exit("text")` does
    return 1


def _show(error: BaseException) -> None:
    sys.stdout.flush()
    without_own_frames(error)
    sys.excepthook(type(error), error, error.__traceback__)


class _ExitsWatched:
    """Catches the ways out that pass no `finally`: `os._exit`, SIGTERM and SIGHUP."""

    def __init__(self, once: _Once) -> None:
        self._once = once
        self._exit = os._exit
        self._caught: list[int] = []

    def __enter__(self) -> None:
        def leave(status: int) -> NoReturn:
            self._once.finish(Ending(status, "exited"))
            sys.stderr.flush()
            self._exit(status)

        os._exit = leave
        for number in _ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._terminated)
                self._caught.append(number)

    def __exit__(self, *_: object) -> None:
        os._exit = self._exit
        for number in self._caught:
            if signal.getsignal(number) == self._terminated:
                signal.signal(number, signal.SIG_DFL)

    def _terminated(self, number: int, _frame: FrameType | None) -> None:
        """Keep what was recorded, then end as the signal would have ended the program."""
        self._once.finish(Ending(128 + number, "terminated"))
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
