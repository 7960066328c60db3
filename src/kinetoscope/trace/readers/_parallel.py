"""Decodes a large file together with worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kinetoscope.trace.readers._pieces import Frame
from kinetoscope.trace.readers._queue import PieceQueue
from kinetoscope.trace.readers._source import BLOCK
from kinetoscope.trace.readers._workers import CannotShareError, Worker, started

if TYPE_CHECKING:
    from kinetoscope.trace.readers._part import Part

Progress = Callable[[int], None]


@contextmanager
def read_parallel(
    path: Path, frame: Frame, processes: int, *, progress: Progress | None = None
) -> Iterator[list[Part]]:
    """The parts of all processes, this one included; their columns can be read in the block.

    Raises:
        CannotShareError: nothing was gained; `frame` must not be used any further.
    """
    with started(path, processes - 1) as (queue, workers):
        _import_tables()
        parts = [_decode_here(path, frame, queue, progress)]
        parts.extend(_result(worker, frame) for worker in workers)
        if not frame.ended:
            raise CannotShareError
        yield parts


def _import_tables() -> None:
    """What the parent needs in the end takes long to import: best while the workers work."""
    import kinetoscope.trace.readers._assemble  # noqa: F401


def _decode_here(path: Path, frame: Frame, queue: PieceQueue, progress: Progress | None) -> Part:
    from kinetoscope.trace.readers._decode import Decoder
    from kinetoscope.trace.readers._share import decode_shared

    decoder = Decoder()
    done = 0
    for index in decode_shared(path, frame, decoder, queue):
        if progress is not None:
            progress((index + 1 - done) * BLOCK)
            done = index + 1
    if decoder.part.open_pairs:
        raise CannotShareError
    return decoder.finish()


def _result(worker: Worker, frame: Frame) -> Part:
    from kinetoscope.trace.readers._wire import read_part

    if worker.process.wait() != 0:
        raise CannotShareError
    try:
        part, tail, repairs = read_part(worker.out)
    except (EOFError, ValueError) as error:
        raise CannotShareError from error
    if tail is not None:
        frame.ended, frame.tail, frame.repairs = True, tail, repairs
    return part
