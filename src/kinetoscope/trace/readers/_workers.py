"""Starts and ends the processes that decode with us. Imports little: they are started first."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import kinetoscope
from kinetoscope.trace.readers._pieces import Frame, RangePieces
from kinetoscope.trace.readers._queue import MOST_PIECES, PieceQueue, filled_queue
from kinetoscope.trace.readers._source import is_gzip

_WORTHWHILE = 32 << 20
"""Bytes of JSON for each process beyond the first: less does not pay for its start."""

_MOST_PROCESSES = 4
"""More are seldom faster, as the parent's part of the work grows, and each costs memory."""

_CODE = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from kinetoscope.trace.readers._worker import main; sys.exit(main(sys.argv[1]))"
)


class CannotShareError(Exception):
    """The file has to be read in one process: by its kind, or because the workers failed."""


@dataclass(frozen=True)
class Worker:
    """A running worker and the anonymous file that it writes to."""

    process: subprocess.Popen[bytes]
    out: BinaryIO


def process_count(path: Path) -> int:
    """How many processes a file of this size is worth on this machine."""
    return max(1, min(cores(), _MOST_PROCESSES, unpacked_size(path) // _WORTHWHILE))


def unpacked_size(path: Path) -> int:
    """Bytes of JSON; for gzip as the last member's trailer tells, which is only a hint."""
    size = path.stat().st_size
    if size < 18 or not is_gzip(path):
        return size
    with path.open("rb") as file:
        file.seek(-4, os.SEEK_END)
        told = int.from_bytes(file.read(4), "little")
    return told if size <= told <= 200 * size else 10 * size


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def started(path: Path, count: int) -> Iterator[tuple[PieceQueue, list[Worker]]]:
    """The queue of pieces and `count` running workers; they and their files end with the block.

    They are started as plain interpreters and not by `multiprocessing`, which would run the
    user's main module again in each of them unless it has a guard.

    Raises:
        CannotShareError: the pieces of this file, or processes, cannot be had.
    """
    if getattr(sys, "frozen", False) or not sys.executable:
        raise CannotShareError
    descriptor = filled_queue(_piece_count(path))
    running: list[Worker] = []
    try:
        while len(running) < count:
            running.append(_start(path, descriptor))
        yield PieceQueue(descriptor), running
    finally:
        os.close(descriptor)
        for worker in running:
            if worker.process.poll() is None:
                worker.process.kill()
            worker.process.wait()
            worker.out.close()


def _piece_count(path: Path) -> int:
    if is_gzip(path):
        return MOST_PIECES  # more than there are: the stream ends before
    source = RangePieces(path, Frame())
    source.close()
    if not source.usable or source.count > MOST_PIECES:
        raise CannotShareError
    return source.count


def _start(path: Path, queue: int) -> Worker:
    home = str(Path(kinetoscope.__file__).parents[1])
    search = [home, *(entry for entry in sys.path if entry)]
    out = anonymous_file()
    try:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            # -S: the path is handed over as it is here, so `site` has nothing to add.
            [sys.executable, "-S", "-c", _CODE, str(path), *search],
            stdin=queue,
            stdout=out,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        out.close()
        raise CannotShareError from error
    return Worker(process, out)


def anonymous_file() -> BinaryIO:
    """A file without a name, which vanishes with its last user."""
    if hasattr(os, "memfd_create"):
        with suppress(OSError):
            return os.fdopen(os.memfd_create("kinetoscope"), "w+b")
    return tempfile.TemporaryFile()
