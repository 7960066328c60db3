"""Where the pieces of a file come from: one pass over a stream, or ranges of a plain file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kinetoscope.errors import EmptyTraceError, FormatError
from kinetoscope.trace.readers import _cutter
from kinetoscope.trace.readers._cutter import Layout
from kinetoscope.trace.readers._other_files import recognised
from kinetoscope.trace.readers._repair import Repairs
from kinetoscope.trace.readers._source import BLOCK, blocks

_OVERLAP = 256 << 10
"""How far behind its range a piece is looked for its end at first."""

_MAX_HEAD = 64 << 20
"""No header is larger; a file without events in its first so many bytes is not a trace."""

Text = bytes | memoryview
Piece = tuple[int, Text]
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

    A text is good until the next piece is asked for. `frame` has its head from the start, its
    tail and damage once the last piece was yielded.
    """
    source = blocks(path, frame.repairs)
    head, layout = _find_layout(path, source)
    frame.head, frame.bare = layout.head, layout.bare
    border = layout.border
    # The byte before an event is white space, a comma or a bracket, and makes room for one.
    text = bytearray(b"[" + head[layout.start :])
    index = 0
    for block in source:
        cut = text.rfind(border) if border and len(text) >= BLOCK else -1
        if cut > 0:
            if wanted is None or wanted(index):
                with _array_view(text, 0, cut + 2) as view:
                    yield index, view
            index += 1
            del text[: cut + _cutter.event_start(border) - 1]
        elif not border or len(text) >= 4 * BLOCK:
            border = _cutter.find_border(bytes(text), 1)
        text += block
    if wanted is None or wanted(index):
        ending = _cutter.split_ending(bytes(text[1:]), border)
        frame.close(ending)
        yield index, _cutter.as_array(ending.events)


def _array_view(text: bytearray, start: int, end: int) -> memoryview:
    """The events in between as an array: the first and the last byte become its brackets."""
    text[start : start + 1] = b"["
    text[end - 1 : end] = b"]"
    return memoryview(text)[start:end]


class RangePieces:
    """Pieces of a plain file by number; any process can read any of them.

    Piece k holds the events whose preceding border starts in bytes [k * BLOCK, (k+1) * BLOCK) of
    the file, up to the next such border; piece 0 holds the first event as well.
    """

    def __init__(self, path: Path, frame: Frame) -> None:
        self._frame = frame
        _, self._layout = _find_layout(path, blocks(path, frame.repairs))
        frame.head, frame.bare = self._layout.head, self._layout.bare
        self._file = path.open("rb", buffering=0)
        self._buffer = bytearray(BLOCK + _OVERLAP)
        self.count = -(-path.stat().st_size // BLOCK)
        self.usable = bool(self._layout.border) and self._layout.start < BLOCK

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, index: int) -> Text | None:
        """The piece as a JSON array, good until the next call; None if no event starts there."""
        border, text = self._layout.border, self._buffer
        self._file.seek(index * BLOCK)
        size = self._fill(text)
        first = self._layout.start
        if index:
            found = text.find(border, 0, min(size, BLOCK + len(border) - 1))
            if found < 0:
                return None
            first = found + _cutter.event_start(border)
        end = text.find(border, BLOCK, size)
        if end < 0:
            return self._until_border(bytes(text[first:size]), max(BLOCK - first, 0))
        return _array_view(text, first - 1, end + 2)

    def _fill(self, buffer: bytearray) -> int:
        size = 0
        with memoryview(buffer) as view:
            while size < len(buffer):
                count = self._file.readinto(view[size:])
                if not count:
                    break
                size += count
        return size

    def _until_border(self, text: bytes, searched: int) -> bytes:
        """A piece that ends beyond the overlap, or with the file."""
        border = self._layout.border
        while True:
            end = text.find(border, searched)
            if end >= 0:
                return b"[" + text[: end + 1] + b"]"
            more = self._file.read(_OVERLAP)
            if not more:
                ending = _cutter.split_ending(text, border)
                self._frame.close(ending)
                return _cutter.as_array(ending.events)
            searched = max(searched, len(text) - len(border) + 1)
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
    if other := recognised(text):
        raise FormatError(f"{path} is not a profiler trace but {other[0]}.", other[1])
    raise FormatError(
        f'{path} is not a profiler trace: there is no "traceEvents" in it.',
        "Export one with torch.profiler's export_chrome_trace(), or pass the file it wrote.",
    )
