"""Decodes a large file in several processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import kinetoscope
from kinetoscope.trace.readers._decode import Decoder
from kinetoscope.trace.readers._part import Part
from kinetoscope.trace.readers._pieces import Frame, RangePieces
from kinetoscope.trace.readers._queue import MOST_PIECES, PieceQueue, decode_shared, filled_queue
from kinetoscope.trace.readers._repair import Repairs
from kinetoscope.trace.readers._source import BLOCK, is_gzip
from kinetoscope.trace.readers._wire import read_part

_WORTHWHILE = 32 << 20
"""Bytes of JSON for each process beyond the first: less does not pay for its start."""

_MOST_PROCESSES = 4
"""More are seldom faster, as the parent's part of the work grows, and each costs memory."""

_CODE = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from kinetoscope.trace.readers._worker import main; sys.exit(main(sys.argv[1]))"
)

Progress = Callable[[int], None]


class CannotShareError(Exception):
    """The file must be read, or the workers failed and it has to be read, in one process."""


def process_count(path: Path) -> int:
    """How many processes a file of this size is worth on this machine."""
    size = unpacked_size(path)
    return max(1, min(_cores(), _MOST_PROCESSES, size // _WORTHWHILE))


def unpacked_size(path: Path) -> int:
    """Bytes of JSON; for gzip as the last member's trailer tells, which is only a hint."""
    size = path.stat().st_size
    if not is_gzip(path) or size < 18:
        return size
    with path.open("rb") as file:
        file.seek(-4, os.SEEK_END)
        told = int.from_bytes(file.read(4), "little")
    return told if size <= told <= 200 * size else 10 * size


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read_parallel(
    path: Path, frame: Frame, processes: int, *, progress: Progress | None = None
) -> list[Part]:
    """The parts of all processes, this one included.

    Raises:
        CannotShareError: nothing was gained; `frame` must not be used any further.
    """
    if getattr(sys, "frozen", False) or not sys.executable:
        raise CannotShareError
    if not is_gzip(path):
        _check_ranges(path)
    count = min(-(-unpacked_size(path) // BLOCK), MOST_PIECES) if not is_gzip(path) else MOST_PIECES
    with _started(path, processes - 1, count) as (queue, workers):
        decoder = Decoder()
        done = 0
        for index in decode_shared(path, frame, decoder, queue):
            if progress is not None:
                progress((index + 1 - done) * BLOCK)
                done = index + 1
        if decoder.part.open_pairs:
            raise CannotShareError
        parts = [decoder.finish()]
        ended = frame.ended
        for worker, file in workers:
            part, tail, repairs = _result(worker, file)
            parts.append(part)
            if tail is not None:
                ended, frame.tail = True, tail
                frame.repairs = repairs
        if not ended:
            raise CannotShareError
        return parts


def _check_ranges(path: Path) -> None:
    source = RangePieces(path, Frame())
    source.close()
    if not source.usable or source.count > MOST_PIECES:
        raise CannotShareError


Workers = list[tuple["subprocess.Popen[bytes]", BinaryIO]]


@contextmanager
def _started(path: Path, workers: int, pieces: int) -> Iterator[tuple[PieceQueue, Workers]]:
    """The queue and the running workers; none of them outlives the block."""
    with ExitStack() as stack:
        descriptor = filled_queue(pieces)
        stack.callback(os.close, descriptor)
        running: Workers = []
        stack.callback(_stop, running)
        try:
            for _ in range(workers):
                file = _anonymous_file()  # the columns are read from it after the worker's end
                running.append((_start(path, descriptor, file), file))
        except OSError as error:
            raise CannotShareError from error
        yield PieceQueue(descriptor), running


def _anonymous_file() -> BinaryIO:
    if hasattr(os, "memfd_create"):
        with suppress(OSError):
            return os.fdopen(os.memfd_create("kinetoscope"), "w+b")
    return tempfile.TemporaryFile()


def _start(path: Path, queue: int, out: BinaryIO) -> subprocess.Popen[bytes]:
    home = str(Path(kinetoscope.__file__).parents[1])
    search = [home, *(entry for entry in sys.path if entry)]
    return subprocess.Popen(  # noqa: S603 - our own interpreter and module
        # -S: the path is handed over as it is here, so `site` has nothing to add.
        [sys.executable, "-S", "-c", _CODE, str(path), *search],
        stdin=queue,
        stdout=out,
        stderr=subprocess.DEVNULL,
    )


def _result(worker: subprocess.Popen[bytes], file: BinaryIO) -> tuple[Part, bytes | None, Repairs]:
    if worker.wait() != 0:
        raise CannotShareError
    try:
        return read_part(file)
    except (EOFError, ValueError) as error:
        raise CannotShareError from error


def _stop(running: Workers) -> None:
    for worker, _ in running:
        if worker.poll() is None:
            worker.kill()
        worker.wait()
