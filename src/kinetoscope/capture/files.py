"""Compresses and completes a window's trace in the background, byte for byte (A7)."""

from __future__ import annotations

import json
import threading
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

    def __init__(self, plain: Path) -> None:
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
