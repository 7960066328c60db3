"""A process that decodes pieces of one file: numbers come in on stdin, columns go to stdout.

Started by `_workers` with the path as its argument. It imports numpy and msgspec and little
else, because its start-up is time in which the parent works alone.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path
from typing import BinaryIO

from kinetoscope.trace.readers._decode import Decoder
from kinetoscope.trace.readers._pieces import Frame
from kinetoscope.trace.readers._queue import PieceQueue
from kinetoscope.trace.readers._repair import Repairs
from kinetoscope.trace.readers._share import decode_shared
from kinetoscope.trace.readers._wire import write_chunk, write_part

CANNOT_SHARE = 3
"""Exit code: the file holds `B`/`E` pairs, which may lie in pieces of different processes."""


def main(path: str) -> int:
    """Decode what the queue on stdin hands out until it is empty."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    gc.disable()
    parent = os.getppid()
    with os.fdopen(sys.stdout.fileno(), "wb", closefd=False) as out:
        return _decode(Path(path), PieceQueue(sys.stdin.fileno()), parent, out)


def _decode(path: Path, queue: PieceQueue, parent: int, out: BinaryIO) -> int:
    frame = Frame()
    decoder = Decoder(emit=lambda chunk: write_chunk(out, chunk))
    for _ in decode_shared(path, frame, decoder, queue):
        if os.getppid() != parent:  # it was killed: nobody waits for the result
            return 1
        if decoder.part.open_pairs:
            return CANNOT_SHARE
    complete = frame.repairs if frame.ended else Repairs()
    write_part(out, decoder.finish(), frame.tail if frame.ended else None, complete)
    return 0
