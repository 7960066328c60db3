"""Reads Kineto and Chrome trace files."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kinetoscope.errors import FormatError, InputNotFoundError
from kinetoscope.trace.readers._parallel import read_parallel
from kinetoscope.trace.readers._pieces import Frame, stream_pieces
from kinetoscope.trace.readers._workers import CannotShareError, process_count

if TYPE_CHECKING:
    from kinetoscope.trace.readers._part import Part
    from kinetoscope.trace.trace import Trace

Progress = Callable[[int], None]


def read_kineto(
    path: Path, *, processes: int | None = None, progress: Progress | None = None
) -> Trace:
    """See `kinetoscope.trace.readers.read`."""
    _check_is_file(path)
    count = process_count(path) if processes is None else processes
    try:
        with _no_gc():
            if count > 1:
                with suppress(CannotShareError):
                    return _read_together(path, count, progress)
            return _read_alone(path, progress)
    except OSError as error:
        raise FormatError(
            f"{path} cannot be read: {error.strerror or error}.",
            "Check the permissions and that the file system is reachable.",
        ) from error


def _read_together(path: Path, count: int, progress: Progress | None) -> Trace:
    frame = Frame()
    with read_parallel(path, frame, count, progress=progress) as parts:
        from kinetoscope.trace.readers._assemble import assemble

        return assemble(path, parts, frame)


def _read_alone(path: Path, progress: Progress | None) -> Trace:
    from kinetoscope.trace.readers._assemble import assemble

    frame = Frame()
    return assemble(path, [_decode_all(path, frame, progress)], frame)


def _decode_all(path: Path, frame: Frame, progress: Progress | None) -> Part:
    from kinetoscope.trace.readers._decode import Decoder
    from kinetoscope.trace.readers._pairs import pair_up

    decoder = Decoder()
    last = 0
    for index, text in stream_pieces(path, frame):
        decoder.add(index, text)
        last = index
        if progress is not None:
            progress(len(text))
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
        hint = "Standard input is not read: save it to a file." if path.name == "-" else ""
        raise InputNotFoundError(f"{path} does not exist.", hint or "Check the path.")


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
