"""Reads Kineto and Chrome trace files."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kinetoscope.errors import FormatError, InputNotFoundError
from kinetoscope.trace.readers._assemble import assemble
from kinetoscope.trace.readers._decode import Decoder
from kinetoscope.trace.readers._pairs import pair_up
from kinetoscope.trace.readers._part import Part
from kinetoscope.trace.readers._serial import Frame, pieces
from kinetoscope.trace.trace import Trace

Progress = Callable[[int], None]


def read_kineto(
    path: Path, *, processes: int | None = None, progress: Progress | None = None
) -> Trace:
    """See `kinetoscope.trace.readers.read`."""
    _check_is_file(path)
    frame = Frame()
    with _no_gc():
        try:
            parts = [read_serial(path, frame, progress=progress)]
        except OSError as error:
            raise FormatError(
                f"{path} cannot be read: {error.strerror or error}.",
                "Check the permissions and that the file system is reachable.",
            ) from error
        return assemble(path, parts, frame)


def read_serial(path: Path, frame: Frame, *, progress: Progress | None = None) -> Part:
    """All events of a file, decoded in this process."""
    decoder = Decoder()
    last = 0
    for index, text in pieces(path, frame, progress=progress):
        decoder.add(index, text)
        last = index
    pairs = decoder.part.open_pairs
    if pairs:
        spans = pair_up(pairs, decoder.part.repairs)
        if spans:
            decoder.add_spans(last + 1, spans)
    return decoder.finish()


def _check_is_file(path: Path) -> None:
    if path.is_dir():
        raise FormatError(
            f"{path} is a folder, not a file.",
            "Folders of ranks are read with `kinetoscope analyze FOLDER`.",
        )
    if not path.exists():
        raise InputNotFoundError(f"{path} does not exist.", "Check the path.")


@contextmanager
def _no_gc() -> Iterator[None]:
    """The collector would walk millions of short-lived events that hold no cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
