"""Where the pieces of a file come from: one pass over a stream, or ranges of a plain file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kinetoscope.errors import EmptyTraceError, FormatError
from kinetoscope.trace.readers import _cutter
from kinetoscope.trace.readers._cutter import Layout
from kinetoscope.trace.readers._repair import Repairs
from kinetoscope.trace.readers._source import BLOCK, blocks

_MAX_HEAD = 64 << 20
"""No header is larger; a file without events in its first so many bytes is not a trace."""

Piece = tuple[int, bytes]
Wanted = Callable[[int], bool]


@dataclass
class Frame:
    """What stands around the events, and what was found about the file as a whole.

    Attributes:
        head, tail: text before the opening and after the closing bracket of the events.
        bare: the file is an array without an object around it.
        ended: the last piece was read, so `tail` and `repairs` are complete.
    """

    head: bytes = b""
    tail: bytes = b""
    bare: bool = False
    ended: bool = False
    repairs: Repairs = field(default_factory=Repairs)

    def close(self, ending: _cutter.Ending) -> None:
        """Note the tail, and how the file ends if not as it should."""
        self.tail = ending.tail
        self.ended = True
        if ending.closed:
            return
        if self.bare and ending.clean:
            self.repairs.add("unclosed_array", "the closing bracket of the events is missing")
        else:
            self.repairs.add("truncated", "the file ends inside the events")


def stream_pieces(path: Path, frame: Frame, *, wanted: Wanted | None = None) -> Iterator[Piece]:
    """Number and text (a JSON array) of each wanted piece, in file order.

    `frame` has its head from the start, its tail and damage once the last piece was yielded.
    """
    source = blocks(path, frame.repairs)
    text, layout = _find_layout(path, source)
    frame.head, frame.bare = layout.head, layout.bare
    border = layout.border
    text = text[layout.start :]
    index = 0
    for block in source:
        cut = text.rfind(border) if border and len(text) >= BLOCK else -1
        if cut > 0:
            if wanted is None or wanted(index):
                yield index, b"".join((b"[", memoryview(text)[: cut + 1], b"]"))
            index += 1
            text = text[cut + _cutter.event_start(border) :]
        elif not border or len(text) >= 4 * BLOCK:
            border = _cutter.find_border(text, 0)
        text += block
    if wanted is None or wanted(index):
        ending = _cutter.split_ending(text, border)
        frame.close(ending)
        yield index, _cutter.as_array(ending.events)


class RangePieces:
    """Pieces of a plain file by number; any process can read any of them.

    Piece k holds the events whose preceding border starts in bytes [k * BLOCK, (k+1) * BLOCK) of
    the file, up to the next such border; piece 0 holds the first event as well.
    """

    def __init__(self, path: Path, frame: Frame) -> None:
        self._frame = frame
        _, self._layout = _find_layout(path, blocks(path, frame.repairs))
        frame.head, frame.bare = self._layout.head, self._layout.bare
        self._file = path.open("rb")
        self.count = -(-path.stat().st_size // BLOCK)
        self.usable = bool(self._layout.border) and self._layout.start < BLOCK

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, index: int) -> bytes | None:
        """The piece as a JSON array; None if no event starts in its range."""
        border = self._layout.border
        start = index * BLOCK
        self._file.seek(start)
        text = self._file.read(BLOCK + len(border) - 1)
        if index == 0:
            first = self._layout.start
        else:
            found = text.find(border)
            if found < 0 or found >= BLOCK:
                return None
            first = found + _cutter.event_start(border)
        return self._until_border(text, first)

    def _until_border(self, text: bytes, first: int) -> bytes:
        border = self._layout.border
        searched = BLOCK
        while True:
            end = text.find(border, searched)
            if end >= 0:
                return b"".join((b"[", memoryview(text)[first : end + 1], b"]"))
            more = self._file.read(BLOCK // 16)
            if not more:
                ending = _cutter.split_ending(text[first:], border)
                self._frame.close(ending)
                return _cutter.as_array(ending.events)
            searched = max(BLOCK, len(text) - len(border) + 1)
            text += more


def _find_layout(path: Path, source: Iterator[bytes]) -> tuple[bytes, Layout]:
    text = b""
    layout = None
    for block in source:
        text += block
        layout = _cutter.find_layout(text)
        if layout is not None:
            return text, layout
        if len(text) > _MAX_HEAD:
            break
    if not text.strip():
        raise EmptyTraceError(
            f"{path} is empty.",
            "The profiler wrote nothing: was step() called often enough for the schedule, and "
            "did the program end before the export finished?",
        )
    raise FormatError(
        f'{path} is not a profiler trace: there is no "traceEvents" in it.',
        "Export one with torch.profiler's export_chrome_trace(), or pass the file it wrote.",
    )
