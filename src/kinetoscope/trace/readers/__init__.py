"""One file in, one `Trace` out. The format is chosen by content, never by suffix."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinetoscope.trace.trace import Trace

__all__ = ["read"]


def read(
    path: str | PathLike[str],
    *,
    processes: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Trace:
    """Read a trace file.

    Args:
        path: a Kineto or Chrome trace, plain or gzip.
        processes: how many processes may decode; None chooses by size of the file and number of
            cores, 1 stays in this process.
        progress: called with the number of bytes of JSON done since the last call.

    Raises:
        InputNotFoundError: no such file.
        FormatError: the file is not a trace.
        EmptyTraceError: the file is a trace without events.
    """
    from kinetoscope.trace.readers._kineto import read_kineto

    return read_kineto(Path(path), processes=processes, progress=progress)
