"""The attribution step: the line of each operator that Python calls without a call event.

`a + b`, `x[i]` or `if t:` reach torch without a Python call that the profiler could record. For
one step a dispatch mode notes, for each operator that arrives at the dispatcher, the innermost
frame of the user's program with its current line. The operators of a step come in the same order
in every steady step, so the n-th `aten::add` inside a function here is the n-th in the trace.

A dispatch mode does not go well with compiled regions (Dynamo would skip or recompile them), so
the step is left out for programs that compile; their lines come from calls and from Dynamo.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

from kinetoscope.capture.paths import is_program_file
from kinetoscope.capture.torch_parts import COUNTERS, DISPATCH_MODE

Table = dict[str, dict[str, list[int]]]
"""Function (`file(first line): name`) -> operator -> lines, in the order of the step."""


class OperatorLines:
    """Notes lines while it is active."""

    def __init__(self) -> None:
        self._mode: Any = None
        self._found: dict[CodeType, dict[str, list[int]]] = {}
        self._user: dict[CodeType, bool] = {}

    def start(self) -> None:
        """Begin, in the thread of the steps."""
        self._mode = _mode(self._note)
        self._mode.__enter__()

    def stop(self) -> None:
        """End, if it is active."""
        if self._mode is not None and self.outermost:
            self._mode.__exit__(None, None, None)

    @property
    def outermost(self) -> bool:
        """Would the next operator come here first? Not inside of one, and not once it is over."""
        current = DISPATCH_MODE.get()
        return current is not None and current() is self._mode

    def table(self) -> Table:
        """The lines by function and operator."""
        return {
            f"{code.co_filename}({code.co_firstlineno}): {code.co_name}": lines
            for code, lines in self._found.items()
        }

    def _note(self, name: str) -> None:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            user = self._user.get(code)
            if user is None:
                user = self._user[code] = is_program_file(code.co_filename)
            if user:
                lines = self._found.setdefault(code, {}).setdefault(name, [])
                lines.append(frame.f_lineno)
                return
            frame = frame.f_back


def compiles() -> bool:
    """Has the program compiled anything with Dynamo?"""
    counters = COUNTERS.get()
    if counters is None:  # without them every program that imports Dynamo may do so
        return "torch._dynamo" in sys.modules
    return bool(sum(counters["frames"].values()))


def _mode(note: Any) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    def dispatch(_mode: Any, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        note(func._schema.name)
        return func(*args, **(kwargs or {}))

    return type("Noting", (TorchDispatchMode,), {"__torch_dispatch__": dispatch})()
