"""Shared by the rules about `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from kinetoscope.trace.frames import compile_id, compiled_region, is_dynamo_glue, is_dynamo_lookup
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray, Trace


@dataclass(frozen=True)
class Regions:
    """Calls of compiled regions, in time order.

    Attributes:
        row: row of the call.
        frame, version: Dynamo's number of the code object, and of its compilation.
    """

    row: IntArray
    frame: IntArray
    version: IntArray


def regions(trace: Trace) -> Regions:
    """All calls of compiled regions."""
    kinds = trace.column("kind")
    host = np.isin(kinds, (Kind.CPU_OP, Kind.ANNOTATION))
    return _numbered(trace, compiled_region, host)


def compilations(trace: Trace) -> Regions:
    """All marks of a compiler that carry the number of a compilation."""
    return _numbered(trace, compile_id, trace.column("kind") == Kind.COMPILE)


def _numbered(
    trace: Trace,
    parse: Callable[[str], tuple[int, int] | None],
    among: npt.NDArray[np.bool_],
) -> Regions:
    frame = np.full(len(trace.names) + 1, -1, dtype=np.int64)
    version = frame.copy()
    for index, name in enumerate(trace.names):
        found = parse(name)
        if found is not None:
            frame[index], version[index] = found
    ids = trace.column("name_id")
    rows = np.flatnonzero(among & (frame[ids] >= 0))
    return Regions(rows, frame[ids[rows]], version[ids[rows]])


def _named(trace: Trace, test: Callable[[str], bool]) -> IntArray:
    flags = np.fromiter((test(n) for n in trace.names), bool, len(trace.names))
    hit = np.append(flags, False)[trace.column("name_id")]
    return np.flatnonzero(hit & (trace.column("kind") == Kind.CPU_OP))


lookups = partial(_named, test=is_dynamo_lookup)
glue = partial(_named, test=is_dynamo_glue)
