"""Shares the pieces of a file among processes.

The queue is a pipe that holds the number of each piece and that all processes read from: who is
ready takes the next one. A pipe hands out a few bytes at once or not at all, so no lock is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from kinetoscope.trace.readers._decode import Decoder
from kinetoscope.trace.readers._pieces import Frame, RangePieces, stream_pieces
from kinetoscope.trace.readers._source import is_gzip

_SIZE = 4
MOST_PIECES = 4096
"""What a pipe surely holds without a reader (16 KiB); 16 GiB of JSON."""


class PieceQueue:
    """The reading end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def take(self) -> int | None:
        """The next number, ascending; None when there is none left."""
        data = os.read(self._descriptor, _SIZE)
        return int.from_bytes(data, "little") if len(data) == _SIZE else None


def filled_queue(count: int) -> int:
    """A descriptor to read the numbers 0 to `count` - 1 from."""
    reader, writer = os.pipe()
    try:
        os.write(writer, b"".join(i.to_bytes(_SIZE, "little") for i in range(count)))
    finally:
        os.close(writer)
    return reader


def decode_shared(path: Path, frame: Frame, decoder: Decoder, queue: PieceQueue) -> Iterator[int]:
    """Decode pieces that the queue hands out; yields the number of each when it is done."""
    if is_gzip(path):
        yield from _decode_stream(path, frame, decoder, queue)
    else:
        yield from _decode_ranges(path, frame, decoder, queue)


def _decode_ranges(path: Path, frame: Frame, decoder: Decoder, queue: PieceQueue) -> Iterator[int]:
    source = RangePieces(path, frame)
    try:
        while (index := queue.take()) is not None:
            text = source.read(index)
            if text is not None:
                decoder.add(index, text)
            yield index
    finally:
        source.close()


def _decode_stream(path: Path, frame: Frame, decoder: Decoder, queue: PieceQueue) -> Iterator[int]:
    """Each process unpacks the whole file, which is quick, and decodes its share of it."""
    mine = [queue.take()]
    for index, text in stream_pieces(path, frame, wanted=lambda index: index == mine[0]):
        decoder.add(index, text)
        yield index
        mine[0] = queue.take()
        if mine[0] is None:
            return
