"""Compresses and completes a window's trace in the background, byte for byte (A7)."""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

KEY = "kinetoscope"
"""The top-level key of a trace under which our own facts stand."""

_PIECE = 1 << 20
_TAIL = 256


class Packer:
    """Compresses one plain trace while the program goes on.

    The closing brace is left out; `finish` adds our facts and the brace, as a second gzip member.

    Attributes:
        plain_bytes: size of the trace before compression.
        error: what went wrong; the plain file then stays where it is.
    """

    def __init__(self, plain: Path, problem: Callable[[str], None] = lambda _: None) -> None:
        self._problem = problem
        self.plain = plain
        self.packed = plain.with_name(plain.name + ".gz")
        self.plain_bytes = plain.stat().st_size
        self.error: OSError | None = None
        self._thread = threading.Thread(target=self._work, name="kinetoscope-pack", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        igzip = _igzip()
        try:
            with self.plain.open("rb") as source, igzip.open(self.packed, "wb") as out:
                _copy_without_brace(source, out)
        except OSError as error:
            self.error = error
            if self.packed.is_file():
                self.packed.unlink()
            self._problem(
                f"the trace could not be compressed ({error.strerror}); it is used as it is, "
                "without what the capture knows besides"
            )

    @property
    def busy(self) -> bool:
        """Does it still compress?"""
        return self._thread.is_alive()

    def finish(self, facts: dict[str, Any]) -> Path:
        """Wait, add the facts, remove the plain file, and return the compressed one.

        Raises:
            OSError: the disk is full or the file cannot be written.
        """
        igzip = _igzip()
        self._thread.join()
        if self.error is not None:
            raise self.error
        text = json.dumps(facts, allow_nan=False, separators=(",", ":"), default=str)
        with self.packed.open("ab") as file, igzip.open(file, "wb") as out:
            out.write(f',\n"{KEY}": {text}\n}}\n'.encode())
        self.plain.unlink(missing_ok=True)
        return self.packed


def return_memory() -> None:
    """Give freed memory back to the system where the C library keeps it (glibc)."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # another C library, or Windows
        return


def _igzip() -> Any:
    from isal import igzip

    return igzip


def _copy_without_brace(source: BinaryIO, out: Any) -> None:
    source.seek(0, 2)
    size = source.tell()
    source.seek(max(size - _TAIL, 0))
    tail = source.read()
    end = size - len(tail) + tail.rfind(b"}")
    source.seek(0)
    while (left := end - source.tell()) > 0:
        out.write(source.read(min(_PIECE, left)))
