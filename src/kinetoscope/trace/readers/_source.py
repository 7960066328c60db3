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
_GZIP_FORMAT = 31
_GZIP_ERROR: type[Exception] = isal_zlib.error  # type: ignore[assignment]


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
    waiting: list[bytes] = []
    size = 0
    for data in _members(path, repairs):
        waiting.append(data)
        size += len(data)
        if size >= BLOCK:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


def _members(path: Path, repairs: Repairs) -> Iterator[bytes]:
    """What the members of a gzip file hold, in pieces of any size up to `BLOCK`."""
    unpacker = isal_zlib.decompressobj(_GZIP_FORMAT)
    with path.open("rb") as file:
        packed = file.read(_PACKED_BLOCK)
        while packed:
            try:
                data = unpacker.decompress(packed, BLOCK)
            except _GZIP_ERROR as error:
                repairs.add("broken_gzip", str(error))
                return
            if data:
                yield data
            packed = unpacker.unconsumed_tail or file.read(_PACKED_BLOCK)
            if unpacker.eof:
                packed = unpacker.unused_data + packed
                packed = packed.lstrip(b"\0") or file.read(_PACKED_BLOCK)
                if not packed.startswith(_GZIP):
                    return  # padding or foreign bytes behind the last member
                unpacker = isal_zlib.decompressobj(_GZIP_FORMAT)
    if not unpacker.eof:
        repairs.add("truncated_gzip", f"{path.name} ends inside a gzip member")
