"""One pass over a file in one process: blocks -> pieces -> decoder."""

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


@dataclass
class Frame:
    """What stands around the events, and what was found about the file as a whole."""

    head: bytes = b""
    tail: bytes = b""
    bare: bool = False
    repairs: Repairs = field(default_factory=Repairs)


def pieces(
    path: Path,
    frame: Frame,
    *,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, bytes]]:
    """Number and text (a JSON array) of each piece, in file order; fills `frame` on the way."""
    source = blocks(path, frame.repairs)
    text = b""
    layout = None
    for block in source:
        text += block
        layout = _cutter.find_layout(text)
        if layout is not None or len(text) > _MAX_HEAD:
            break
    layout = _checked(path, text, layout)
    frame.head, frame.bare = layout.head, layout.bare
    border, split = layout.border, _cutter.event_start(layout.border) if layout.border else 0
    text = text[layout.start :]
    index = 0
    for block in source:
        if progress is not None:
            progress(len(block))
        cut = text.rfind(border) if border and len(text) >= BLOCK else -1
        if cut > 0:
            yield index, b"".join((b"[", memoryview(text)[: cut + 1], b"]"))
            index += 1
            text = text[cut + split :]
        elif not border or len(text) >= 4 * BLOCK:
            border = _cutter.find_border(text, 0)
            split = _cutter.event_start(border) if border else 0
        text += block
    ending = _cutter.split_ending(text, border)
    close_frame(frame, ending)
    yield index, _cutter.as_array(ending.events)


def close_frame(frame: Frame, ending: _cutter.Ending) -> None:
    """Note the tail, and how the file ends if not as it should."""
    frame.tail = ending.tail
    if ending.closed:
        return
    if frame.bare and ending.clean:
        frame.repairs.add("unclosed_array", "the closing bracket of the events is missing")
    else:
        frame.repairs.add("truncated", "the file ends inside the events")


def _checked(path: Path, text: bytes, layout: Layout | None) -> Layout:
    if layout is not None:
        return layout
    if not text.strip():
        raise EmptyTraceError(
            f"{path} is empty.",
            "The profiler wrote nothing: was step() called often enough for the schedule, and "
            "did the program end before the export finished?",
        )
    raise FormatError(
        f"{path} is not a profiler trace: no \"traceEvents\" in it.",
        "Export one with torch.profiler's export_chrome_trace(), or pass the file it wrote.",
    )
