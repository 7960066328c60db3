"""Several ranks of one program: the first one decides when enough was measured.

Ranks that end by their own clocks end at different steps, and those that make one step more wait in
its collective for ever: on a device nothing tells them that a peer has left. So only rank 0 ends a
run. It reports where it stands and leaves at once; to unwind the program would wait for the others
in a `finally` that calls a barrier. The others see the report and leave, wherever they are.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from kinetoscope.experiments._process import FAILED, REPORT, alive

WATCH_S = 0.1


def rank() -> int:
    """Which rank this process is; 0 where there is only one."""
    return int(os.environ.get("RANK", "0"))


def several() -> bool:
    """Whether torchrun has started other ranks."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def end_of_run(folder: Path, parent: int, report: Callable[[], None]) -> Callable[[], None]:
    """Return what a rank does at the step that ends its measurement."""
    if rank() == 0:

        def last() -> None:
            report()
            leave()

        return last
    threading.Thread(target=_leave_with_the_first, args=(folder, parent), daemon=True).start()
    return lambda: None


def _leave_with_the_first(folder: Path, parent: int) -> None:
    while not (folder / REPORT).exists() and folder.exists() and alive(parent):
        time.sleep(WATCH_S)
    leave()


def tell_failure(folder: Path, error: str | None) -> None:
    """Leave a note of why this rank failed, unless the first rank had ended before."""
    if error is not None and not (folder / REPORT).exists():
        (folder / f"{FAILED}{rank()}").write_text(error, encoding="utf-8")


def leave(code: int = 0) -> None:
    """End at once: other ranks may wait for this one in a collective."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
