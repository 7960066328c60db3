"""The recorded arguments of an operator, read once per distinct set, and what a cost is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import msgspec

from kinetoscope.metrics.precision import Dtype, dtype_of, element_size

__all__ = ["Args", "Cost", "Formula", "NotRecordedError", "Op", "Shape", "broadcast", "parse_list"]

Shape = tuple[int, ...]


class NotRecordedError(Exception):
    """What a formula needs is not in the recording: its cost is unknown."""


class Cost(NamedTuple):
    """Work of one call of an operator; -1 is "unknown".

    flop: multiply and add are two. bytes: compulsory traffic to device memory, each input read
    and each output written once. matrix: done by matrix units when they know the type.
    gemm: (m, n, k, batch) of a matrix product.
    """

    flop: float
    bytes: float
    dtype: Dtype
    matrix: bool = False
    gemm: tuple[int, int, int, int] = (-1, -1, -1, -1)


UNKNOWN = Cost(-1.0, -1.0, Dtype.UNKNOWN)


@dataclass(frozen=True)
class Args:
    """Arguments by position, as the schema of the operator orders them.

    `element` is type and size of the elements of tensor lists, from the name of the kernel;
    `looked_up` the rows and the elements that were looked up, from its grid (-1: unknown).
    Methods raise `NotRecordedError` for what is not there.
    """

    dims: list[Any]
    types: list[Any]
    strides: list[Any]
    concrete: list[Any]
    element: tuple[Dtype, int] = (Dtype.UNKNOWN, 0)
    looked_up: tuple[int, int] = (-1, -1)

    def is_tensor(self, i: int) -> bool:
        """Whether argument `i` is a tensor with a shape (0-dim included)."""
        return (
            0 <= i < len(self.dims)
            and _is_shape(self.dims[i])
            and self.dtype(i) is not Dtype.UNKNOWN
        )

    def shape(self, i: int) -> Shape:
        """Shape of tensor `i`."""
        if not self.is_tensor(i):
            raise NotRecordedError
        return tuple(self.dims[i])

    def matrix(self, i: int, rank: int) -> Shape:
        """Shape of tensor `i`, which must have this rank."""
        shape = self.shape(i)
        if len(shape) != rank:
            raise NotRecordedError
        return shape

    def n(self, i: int) -> int:
        """Elements of tensor `i`."""
        return prod(self.shape(i))

    def stored(self, i: int) -> int:
        """Elements of tensor `i` that exist in memory: an expanded dimension (stride 0) is one."""
        shape = self.shape(i)
        strides = self.strides[i] if i < len(self.strides) else ()
        if not _is_shape(strides) or len(strides) != len(shape):
            return prod(shape)
        return prod(
            size if stride else min(size, 1) for size, stride in zip(shape, strides, strict=True)
        )

    def dtype(self, i: int) -> Dtype:
        """Type of argument `i`, UNKNOWN if it is no tensor."""
        text = self.types[i] if i < len(self.types) else ""
        return dtype_of(text) if isinstance(text, str) else Dtype.UNKNOWN

    def size(self, i: int) -> int:
        """Bytes of an element of tensor `i`."""
        size = element_size(self.dtype(i))
        if not size:
            raise NotRecordedError
        return size

    def bytes(self, i: int) -> int:
        """Bytes of tensor `i` in memory; 0 when the argument is absent."""
        return self.stored(i) * self.size(i) if self.is_tensor(i) else 0

    def tensors(self) -> list[int]:
        """Positions of all tensor arguments."""
        return [i for i in range(len(self.dims)) if self.is_tensor(i)]

    def list_shapes(self, i: int) -> list[Shape]:
        """Shapes of tensor list `i`; lists of more than 30 tensors are recorded as empty."""
        shapes = self.dims[i] if i < len(self.dims) else ()
        if not isinstance(shapes, list) or not shapes or not all(_is_shape(s) for s in shapes):
            raise NotRecordedError
        return [tuple(shape) for shape in shapes]

    def list_n(self, i: int) -> int:
        """Elements of tensor list `i`."""
        return sum(prod(shape) for shape in self.list_shapes(i))

    def is_list(self, i: int) -> bool:
        """Whether argument `i` is a list of tensors."""
        return 0 <= i < len(self.types) and self.types[i] == "TensorList"

    def list_size(self) -> int:
        """Bytes of an element of the tensor lists."""
        if not self.element[1]:
            raise NotRecordedError
        return self.element[1]

    def text(self, i: int) -> str:
        """Value of argument `i` as recorded, "" when it is not."""
        value = self.concrete[i] if 0 <= i < len(self.concrete) else ""
        return value if isinstance(value, str) else str(value)

    def ints(self, i: int) -> list[int]:
        """Value of argument `i`, a list of whole numbers such as a stride or padding."""
        try:
            values = [int(v) for v in self.text(i).strip("[]() ").split(",") if v.strip()]
        except ValueError as exc:
            raise NotRecordedError from exc
        if not values:
            raise NotRecordedError
        return values

    def spread(self, i: int, rank: int, default: int | None = None) -> list[int]:
        """`ints` with one value a spatial dimension; one value stands for all.

        An argument that was left out has its default; values that were not recorded have none.
        """
        if default is not None and self.concrete and self.text(i) in ("", "[]"):
            return [default] * rank
        values = self.ints(i)
        if len(values) == 1:
            return values * rank
        if len(values) != rank:
            raise NotRecordedError
        return values

    def flags(self, i: int) -> list[bool]:
        """Value of argument `i`, a list of booleans; empty when it is not recorded."""
        return [word.strip() == "True" for word in self.text(i).strip("[] ").split(",") if word]


Formula = Callable[[Args], Cost]


class Op(NamedTuple):
    """How the cost of an operator is found.

    formula: from its arguments. concrete: needs their values, not only the shapes. composite:
    made of other operators of the table; counts only when none of them was recorded. lists:
    needs the element type of tensor lists. grid: needs what the grid of the kernel tells.
    """

    formula: Formula
    concrete: bool = False
    composite: bool = False
    lists: bool = False
    grid: bool = False


def broadcast(*shapes: Shape) -> Shape:
    """The shape that these broadcast to."""
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return (
        tuple(0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True))
        if rank
        else ()
    )


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and all(type(size) is int for size in value)


def parse_list(text: str) -> list[Any]:
    """The JSON list in a pooled text; empty when it is none."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return []
    return value if isinstance(value, list) else []
