"""Runs a function in the main thread soon, from another one."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

_Call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


def once(ready: Callable[[], bool], function: Callable[[], None]) -> None:
    """Call the function in this thread, at once or at the first call or return where it is ready.

    Nothing is done when the program has a profile function of its own.
    """
    if ready():
        function()
    elif sys.getprofile() is None:

        def look(_frame: FrameType, _event: str, _argument: object) -> None:
            if ready():
                sys.setprofile(None)
                function()

        sys.setprofile(look)


class Soon:
    """Asks the interpreter to call a function between two instructions of the main thread.

    Torch's profiler can only be stopped by the thread that started it, and a program that waits
    or computes passes no seam of ours.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._call: Any = _Call(self._work)  # kept alive until it was called

    def ask(self) -> None:
        """Call the function soon."""
        ctypes.pythonapi.Py_AddPendingCall(self._call, None)

    def _work(self, _argument: object) -> int:
        self._function()
        return 0
