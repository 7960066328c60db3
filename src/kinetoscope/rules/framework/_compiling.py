"""Shared by the rules about `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from kinetoscope.trace.compiled_frames import (
    compile_id,
    compiled_region,
    is_dynamo_glue,
    is_dynamo_lookup,
)
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
    flags = trace.name_flags(test)
    hit = flags[trace.column("name_id")]
    return np.flatnonzero(hit & (trace.column("kind") == Kind.CPU_OP))


lookups = partial(_named, test=is_dynamo_lookup)
glue = partial(_named, test=is_dynamo_glue)


@dataclass(frozen=True)
class CompiledCalls:
    """Calls of compiled functions: from Dynamo's lookup of a version to the end of the call.

    Attributes:
        lookup: row of the lookup.
        thread: of each call.
        start, end: of it, ns; it ends with the frame around the lookup or at the next lookup.
        compiled: a compiled region ran.
        eager: neither ran a region nor a compiler: no version fitted, and none was made.
    """

    lookup: IntArray
    thread: IntArray
    start: IntArray
    end: IntArray
    compiled: npt.NDArray[np.bool_]
    eager: npt.NDArray[np.bool_]

    def number(self, thread: IntArray, at: IntArray) -> IntArray:
        """Call that each moment of a thread lies in; -1: none."""
        found = np.full(at.size, -1, dtype=np.int64)
        for lane in np.unique(self.thread):
            own = np.flatnonzero(self.thread == lane)
            mine = np.flatnonzero(thread == lane)
            if mine.size == 0:
                continue
            place = np.searchsorted(self.start[own], at[mine], side="right") - 1
            call = own[np.maximum(place, 0)]
            found[mine] = np.where((place >= 0) & (at[mine] < self.end[call]), call, -1)
        return found

    def inside(
        self, which: npt.NDArray[np.bool_], thread: IntArray, at: IntArray
    ) -> npt.NDArray[np.bool_]:
        """Which moments of threads lie in these calls."""
        number = self.number(thread, at)
        return np.asarray((number >= 0) & which[np.maximum(number, 0)])


def compiled_calls(trace: Trace) -> CompiledCalls:
    """All calls in which Dynamo looked for a version, in time order of each thread."""
    rows = lookups(trace)
    ts, dur = trace.column("ts_ns"), trace.column("dur_ns")
    thread = trace.column("thread").astype(np.int64)
    rows = rows[np.lexsort((ts[rows], thread[rows]))]
    start, lane = ts[rows], thread[rows]
    following = np.append(start[1:], np.iinfo(np.int64).max)
    following[np.append(lane[1:] != lane[:-1], True)] = np.iinfo(np.int64).max
    end = np.minimum(following, _call_end(trace, rows, start + dur[rows]))
    return CompiledCalls(
        lookup=rows,
        thread=lane,
        start=start,
        end=end,
        compiled=(ran := _any_between(trace, regions(trace).row, lane, start, end)),
        eager=~ran & ~_any_between(trace, _compiler_rows(trace), lane, start, following),
    )


def _call_end(trace: Trace, rows: IntArray, least: IntArray) -> IntArray:
    """End of the frame around each lookup; of the step where frames were not recorded."""
    tree, edges = trace.tree, trace.steps.edges
    parent = tree.parent[tree.node_of[rows]]
    framed = (parent >= 0) & (tree.kind[np.maximum(parent, 0)] == Kind.PYTHON)
    step = edges[np.minimum(np.searchsorted(edges, least, side="right"), edges.size - 1)]
    return np.where(framed, tree.end[np.maximum(parent, 0)], np.maximum(step, least))


def _compiler_rows(trace: Trace) -> IntArray:
    return np.flatnonzero(trace.column("kind") == Kind.COMPILE)


def _any_between(
    trace: Trace, rows: IntArray, lane: IntArray, start: IntArray, end: IntArray
) -> npt.NDArray[np.bool_]:
    """Does any of the rows begin on the same thread in each stretch?"""
    result = np.zeros(start.size, dtype=bool)
    thread, ts = trace.column("thread")[rows], trace.column("ts_ns")[rows]
    for index in np.unique(lane):
        mine = lane == index
        at = np.sort(ts[thread == index])
        result[mine] = np.searchsorted(at, end[mine]) > np.searchsorted(at, start[mine])
    return result
