"""Decodes the pieces of a file that the queue hands to this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kinetoscope.trace.readers._decode import Decoder
from kinetoscope.trace.readers._pieces import Frame, RangePieces, stream_pieces
from kinetoscope.trace.readers._queue import PieceQueue
from kinetoscope.trace.readers._source import is_gzip


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
