"""Shares the pieces of a file among processes.

The queue is a pipe that holds the number of each piece and that all processes read from: who is
ready takes the next one. A pipe hands out a few bytes at once or not at all, so no lock is needed.
"""

from __future__ import annotations

import os

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
