"""The exact line of every call that left a frame of the user's program.

Torch's profiler keeps, for each recorded Python call, the line that the *calling* frame was at
(`caller.line_number` of the event tree), but exports only the first line of the called function.
With stacks recorded this costs nothing while the program runs; the event tree is walked once
after the full window. Calls that Python makes without a call event (operators such as `a + b`,
`x[i]`, `if t:`) are not in it: `kinetoscope.capture.dispatch` records those.
"""

from __future__ import annotations

import time
from typing import Any

from kinetoscope.capture.paths import is_program_file
from kinetoscope.capture.torch_parts import EVENT_TYPES

LONGEST_S = 2.0
"""The program stands still while the tree is walked."""


def call_lines(results: Any, *, limit_s: float = LONGEST_S) -> dict[str, list[int]]:
    """Lines of the calls out of the user's frames.

    Args:
        results: `kineto_results` of a window with stacks.
        limit_s: give up the rest of the window after so many seconds.

    Returns:
        `at`: start of each call, as differences to the one before (the first one absolute), ns;
        `line`: the line that called. Both are in time order.

    Raises:
        AttributeError: this torch keeps the lines elsewhere.
    """
    types = EVENT_TYPES.get()
    if types is None:  # said already
        return {"at": [], "line": []}
    python = (types.PyCall, types.PyCCall)
    users = {"": False}
    found: list[tuple[int, int]] = []
    until = time.perf_counter() + limit_s
    stack = list(reversed(results.experimental_event_tree()))
    seen = 0
    while stack:
        event = stack.pop()
        seen += 1
        if not seen % 4096 and time.perf_counter() > until:
            break
        if event.tag in python:
            caller = event.extra_fields.caller
            file = _file_of(caller)
            user = users.get(file)
            if user is None:
                user = users[file] = is_program_file(file)
            if user:
                found.append((event.start_time_ns, caller.line_number))
        stack.extend(reversed(event.children))
    found.sort()
    return {"at": _differences([at for at, _ in found]), "line": [line for _, line in found]}


def _file_of(caller: Any) -> str:
    """The caller's file; "" when torch lost it.

    The event tree points to the name inside of the code object. Of code that ran once and is gone
    (a module's body, `exec`) it may read anything.
    """
    try:
        return str(caller.file_name)
    except UnicodeDecodeError:
        return ""


def _differences(values: list[int]) -> list[int]:
    return [b - a for a, b in zip([0, *values], values, strict=False)]
