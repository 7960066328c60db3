"""What a worker hands back: chunks of columns and pools, as bytes in an anonymous file.

A file and not a pipe: the worker never waits for the parent, nobody holds the columns twice, and
it vanishes with its last user whatever happens.
"""

from __future__ import annotations

from typing import Any, BinaryIO

import msgspec
import numpy as np

from kinetoscope.trace.readers._part import MEMORY_FIELDS, Chunk, Part, Stored
from kinetoscope.trace.readers._repair import Repairs

_LENGTH = 8


class _ChunkHead(msgspec.Struct, array_like=True, tag="c"):
    index: int
    rows: int
    columns: list[tuple[str, str, int]]


class _PartHead(msgspec.Struct, array_like=True, tag="p"):
    names: list[str]
    categories: list[str]
    lanes: list[tuple[int | str | None, int | str | None, int | None, int | None]]
    texts: list[bytes]
    shapes: list[tuple[int, int, int, int]]
    memory: bytes
    metadata: list[tuple[str, int | str | None, int | str | None, str]]
    repair_counts: dict[str, int]
    repair_examples: dict[str, str]
    tail: bytes | None
    frame_counts: dict[str, int]
    frame_examples: dict[str, str]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_ChunkHead | _PartHead)


def write_chunk(file: BinaryIO, chunk: Chunk) -> None:
    """Append a chunk: its head, then the bytes of each column."""
    arrays = {name: np.ascontiguousarray(values) for name, values in chunk.columns.items()}
    columns = [(name, array.dtype.str, array.nbytes) for name, array in arrays.items()]
    _write_head(file, _ChunkHead(chunk.index, chunk.rows, columns))
    for array in arrays.values():
        file.write(array.data.cast("B"))


def write_part(file: BinaryIO, part: Part, tail: bytes | None, frame: Repairs) -> None:
    """Append the pools, which end the file.

    Args:
        file: where the chunks were written.
        part: its pools; the chunks are not looked at.
        tail: text behind the events if this process read the last piece, else None.
        frame: damage of the file as a whole, found together with the tail.
    """
    head = _PartHead(
        part.names,
        part.categories,
        part.lanes,
        part.texts,
        part.shapes,  # type: ignore[arg-type]
        part.memory.tobytes(),
        part.metadata,
        part.repairs.counts,
        part.repairs.examples,
        tail,
        frame.counts,
        frame.examples,
    )
    _write_head(file, head)


def _write_head(file: BinaryIO, head: Any) -> None:
    data = _ENCODER.encode(head)
    file.write(len(data).to_bytes(_LENGTH, "little"))
    file.write(data)


def read_part(file: BinaryIO) -> tuple[Part, bytes | None, Repairs]:
    """What `write_chunk` and `write_part` wrote; the columns stay in the file until loaded.

    Raises:
        EOFError: the file does not end with the pools.
    """
    file.seek(0)
    chunks: list[Chunk] = []
    while True:
        length = file.read(_LENGTH)
        if len(length) < _LENGTH:
            raise EOFError
        head = _DECODER.decode(file.read(int.from_bytes(length, "little")))
        if isinstance(head, _PartHead):
            return _part(head, chunks), head.tail, Repairs(head.frame_counts, head.frame_examples)
        offset = file.tell()
        columns = {}
        for name, dtype, size in head.columns:
            columns[name] = Stored(file, offset, dtype, head.rows)
            offset += size
        chunks.append(Chunk(head.index, head.rows, columns))
        file.seek(offset)


def _part(head: _PartHead, chunks: list[Chunk]) -> Part:
    return Part(
        chunks=chunks,
        names=head.names,
        categories=head.categories,
        lanes=list(head.lanes),
        texts=head.texts,
        shapes=list(head.shapes),
        memory=np.frombuffer(head.memory, dtype=np.int64).reshape(-1, MEMORY_FIELDS),
        metadata=list(head.metadata),
        repairs=Repairs(head.repair_counts, head.repair_examples),
    )
