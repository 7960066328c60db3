"""Samples of Python frames: which line of a function the host spends its time on.

A thread looks at the frames of the other threads some hundred times a second
(`sys._current_frames`). It finds lines inside NumPy or plain Python code, where torch's profiler
sees one function only. It runs after the windows, so that it disturbs no measurement.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from kinetoscope.capture.paths import is_program_file
from kinetoscope.capture.torch_parts import COMPILE_LOCK

EVERY_S = 0.004
SWITCH_S = 5e-5
"""How soon Python hands over to the sampler. With the usual 5 ms it would only ever see threads
where they give the lock up by themselves, in operators and waits, and never in plain Python."""
_DEEPEST = 12
_LONGEST_TABLE = 200

Place = tuple[str, int, str, int]
"""File, first line of the function, name of the function, current line."""


class FrameSampler:
    """Counts the lines of the user's program that threads are at."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every = every_s
        self._stop = threading.Event()
        self._own: Counter[Place] = Counter()
        self._user: dict[str, bool] = {}
        self.samples = 0
        self._usual = sys.getswitchinterval()
        self._thread = threading.Thread(target=self._work, name="kinetoscope-lines", daemon=True)

    def start(self) -> None:
        """Begin to sample all threads of the process."""
        self._thread.start()

    def stop(self) -> list[list[Any]]:
        """End; rows of file, first line, function, line, samples, most sampled first."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        return self.table()

    def put_back(self) -> None:
        """Let Python hand over as seldom as before."""
        sys.setswitchinterval(self._usual)

    def table(self) -> list[list[Any]]:
        """What was counted so far."""
        return [[*place, n] for place, n in self._own.most_common(_LONGEST_TABLE)]

    def _work(self) -> None:
        sys.setswitchinterval(min(self._usual, SWITCH_S))
        try:
            self._look()
        finally:
            self.put_back()

    def _look(self) -> None:
        while not self._stop.wait(self._every):
            self._sample()

    def _sample(self) -> None:
        """Look once, unless Dynamo compiles. No frame may outlive this call.

        Who holds a frame holds its locals. What they undo when they are dropped would be undone
        late, and in this thread: Dynamo's guards of torch's state would then fail the program.
        """
        compiling = _compile_lock()
        if compiling is None or not compiling.acquire(blocking=False):
            return
        try:
            own = threading.get_ident()
            self.samples += 1
            for thread, frame in sys._current_frames().items():
                if thread != own:
                    self._count(frame)
        finally:
            compiling.release()

    def _count(self, frame: FrameType | None) -> None:
        """Count the user's frames of one stack, each function once."""
        seen: set[CodeType] = set()
        depth = 0
        while frame is not None and depth < 200 and len(seen) < _DEEPEST:
            code = frame.f_code
            file = code.co_filename
            user = self._user.get(file)
            if user is None:
                user = self._user[file] = is_program_file(file)
            if user and code not in seen:
                seen.add(code)
                self._own[(file, code.co_firstlineno, code.co_name, frame.f_lineno)] += 1
            # A forked worker has its parent's frames below its own: they are not what it does.
            frame = None if code.co_name == "_worker_loop" else frame.f_back
            depth += 1


def _compile_lock() -> Any:
    """What Dynamo holds while it compiles; a lock of nobody in programs that do not compile.

    None where a program may compile and nothing says when.
    """
    if COMPILE_LOCK.module not in sys.modules:
        return threading.Lock()
    return COMPILE_LOCK.get()


def write_table(sampler: FrameSampler, path: Path) -> None:
    """Write the counts at once, so that a reader never sees half of them."""
    import json

    temporary = path.with_suffix(f".{os.getpid()}.part")
    temporary.write_text(json.dumps({"samples": sampler.samples, "table": sampler.table()}))
    temporary.replace(path)
