"""Bytes of a file in blocks, unpacked when the content is gzip, whatever the name says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from isal import isal_zlib

from kinetoscope.trace.readers._repair import Repairs

BLOCK = 4 << 20
"""Bytes of a piece of JSON: large enough to decode in bulk, small enough for the cache."""

_PACKED_BLOCK = 256 << 10
_GZIP = b"\x1f\x8b"


def is_gzip(path: Path) -> bool:
    """Whether the content starts like gzip."""
    with path.open("rb") as file:
        return file.read(2) == _GZIP


def blocks(path: Path, repairs: Repairs) -> Iterator[bytes]:
    """The unpacked content; damage of the compression is counted, what comes before it is kept."""
    if not is_gzip(path):
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                yield block
        return
    yield from _unpacked(path, repairs)


def _unpacked(path: Path, repairs: Repairs) -> Iterator[bytes]:
    unpacker = isal_zlib.decompressobj(31)
    waiting: list[bytes] = []
    size = 0
    with path.open("rb") as file:
        packed = file.read(_PACKED_BLOCK)
        while packed:
            try:
                data = unpacker.decompress(packed, BLOCK)
            except isal_zlib.error as error:
                repairs.add("broken_gzip", str(error))
                break
            if data:
                waiting.append(data)
                size += len(data)
            if size >= BLOCK:
                yield b"".join(waiting)
                waiting, size = [], 0
            if unpacker.eof:
                packed = unpacker.unused_data.lstrip(b"\0") or file.read(_PACKED_BLOCK)
                packed = packed.lstrip(b"\0") if packed[:1] == b"\0" else packed
                if packed[:2] != _GZIP:
                    break
                unpacker = isal_zlib.decompressobj(31)
            else:
                packed = unpacker.unconsumed_tail or file.read(_PACKED_BLOCK)
        else:
            if not unpacker.eof:
                repairs.add("truncated_gzip", f"{path.name} ends inside a gzip member")
    if waiting:
        yield b"".join(waiting)
