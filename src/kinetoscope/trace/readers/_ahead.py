"""Reads many small files in several processes, each file whole.

A large file is decoded together (`_parallel`); for a folder of small ones it is better to give
every process files of its own.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import kinetoscope
from kinetoscope.errors import InputError
from kinetoscope.trace.readers._workers import (
    Worker,
    anonymous_file,
    cores,
    process_count,
    unpacked_size,
)

if TYPE_CHECKING:
    from kinetoscope.trace.trace import Trace

_WORTHWHILE = 48 << 20
"""Bytes of JSON for each process beyond the first; each imports the tables as well."""
_MOST_PROCESSES = 16

_CODE = (
    "import sys; n = int(sys.argv[1]) + 2; sys.path[:] = sys.argv[2:n]; "
    "from kinetoscope.trace.readers._ahead import main; main(sys.argv[n:])"
)


def read_ahead(paths: Sequence[Path], read_one: Callable[[Path], Trace]) -> dict[Path, Trace]:
    """Traces of small files, read by several processes; none when that would not pay.

    Args:
        paths: the files that will be read.
        read_one: reads a file in this process.

    Returns:
        What could be read. Files that are missing are large, or are no traces: reading them one
        by one says why.
    """
    small = [path for path in paths if path.is_file() and process_count(path) == 1]
    sizes = {path: unpacked_size(path) for path in small}
    count = min(cores(), _MOST_PROCESSES, 1 + sum(sizes.values()) // _WORTHWHILE, len(small))
    if count < 2 or getattr(sys, "frozen", False) or not sys.executable:
        return {}
    by_size = sorted(small, key=lambda path: -sizes[path])
    running: list[Worker] = []
    try:
        for i in range(1, count):
            with suppress(OSError):
                running.append(_start(by_size[i::count]))
        found = {}
        for path in by_size[::count]:
            with suppress(InputError):
                found[path] = read_one(path)
        for worker in running:
            found.update(_collect(worker))
        return found
    finally:
        for worker in running:
            if worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait()
            worker.out.close()


def _start(paths: Sequence[Path]) -> Worker:
    home = str(Path(kinetoscope.__file__).parents[1])
    search = [home, *(entry for entry in sys.path if entry)]
    out = anonymous_file()
    process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-S", "-c", _CODE, str(len(search)), *search, *map(str, paths)],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.DEVNULL,
    )
    return Worker(process, out)


def main(paths: Sequence[str]) -> None:
    """In the worker: read each file; leave out what cannot be read, the parent will say why."""
    from kinetoscope.trace.readers import read

    with os.fdopen(sys.stdout.fileno(), "wb", closefd=False) as out:
        for path in paths:
            with suppress(InputError, OSError):
                pickle.dump((path, read(path, processes=1)), out, protocol=5)


def _collect(worker: Worker) -> dict[Path, Trace]:
    found: dict[Path, Trace] = {}
    worker.process.wait()
    worker.out.seek(0)
    with suppress(EOFError, pickle.UnpicklingError):
        while True:
            path, trace = _load(worker.out)
            found[Path(path)] = trace
    return found


def _load(out: BinaryIO) -> tuple[str, Trace]:
    loaded: tuple[str, Trace] = pickle.load(out)  # noqa: S301 - written by our own process
    return loaded
