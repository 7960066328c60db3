"""Bytes of a file in blocks, unpacked when the content is gzip, whatever the name says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from isal import isal_zlib

from kinetoscope.trace.readers._repair import Repairs

BLOCK = 4 << 20
"""Bytes of a piece of JSON: large enough to decode in bulk, small enough for the cache."""

_PACKED_BLOCK = 32 << 10
"""What is unpacked at a time, and so what is lost at a damaged place."""

_TRAILER = 8
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
    source = _packed_blocks(path)
    packed = next(source, b"")
    while packed:
        try:
            data = unpacker.decompress(packed, BLOCK)
        except _GZIP_ERROR as error:
            repairs.add("broken_gzip", str(error))
            return
        if data:
            yield data
        packed = unpacker.unconsumed_tail or next(source, b"")
        if unpacker.eof:
            packed = unpacker.unused_data + packed
            while packed and not packed.strip(b"\0"):
                packed = next(source, b"")
            packed = packed.lstrip(b"\0")
            if not packed.startswith(_GZIP[: len(packed)]):
                return  # foreign bytes behind the last member
            unpacker = isal_zlib.decompressobj(_GZIP_FORMAT) if packed else unpacker
    if not unpacker.eof:
        repairs.add("truncated_gzip", f"{path.name} ends inside a gzip member")


def _packed_blocks(path: Path) -> Iterator[bytes]:
    """The file; its last bytes come alone, so that a wrong checksum costs no data."""
    with path.open("rb") as file:
        block = file.read(_PACKED_BLOCK)
        while block:
            following = file.read(_PACKED_BLOCK)
            if following:
                yield block
            else:
                yield from filter(None, (block[:-_TRAILER], block[-_TRAILER:]))
            block = following
