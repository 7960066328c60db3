"""What each host thread was doing at each moment, as one cause per stretch of time.

The innermost event says what a thread does; some surroundings say more: copying a tensor is
loading data when it happens inside the DataLoader. Causes are decided per call-tree node, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.frames import (
    is_autograd_wait,
    is_checkpoint_frame,
    is_collective_wait_frame,
    is_compile_frame,
    is_loader_frame,
    is_wait,
)
from kinetoscope.trace.kinds import RUNTIME_KINDS, Kind
from kinetoscope.trace.trace import IntArray, Trace


class Cause(IntEnum):
    """What a host thread does in a stretch of time."""

    NOTHING = 0
    """No event covers the moment."""
    LOADER = 1
    COMPILE = 2
    CHECKPOINT = 3
    GC = 4
    COLLECTIVE = 5
    """Inside a host-side collective or waiting for one."""
    SYNC = 6
    """Waiting for the device."""
    ALLOC = 7
    """Taking memory from the driver or giving it back."""
    COPY = 8
    """Inside the call that issues a copy; long for pageable memory."""
    LAUNCH = 9
    """Inside a launch or another runtime call."""
    OP = 10
    """Operator code on the host: dispatch, shape checks, CPU kernels."""
    PYTHON = 11
    """Python of the user, a library or the framework."""
    ANNOTATION = 12
    """Inside a named range and nothing else: code that the recording does not show."""
    WAIT = 13
    """Waiting for a lock, a queue, a socket, or sleeping."""
    AUTOGRAD = 14
    """Waiting for the autograd engine's threads."""


#: Surroundings that explain all that happens inside them; the outermost one wins.
STRONG = (Cause.LOADER, Cause.COMPILE, Cause.CHECKPOINT, Cause.GC)


@dataclass(frozen=True)
class Activity:
    """Disjoint stretches of host activity, sorted by (thread, start); ns.

    `row` is the innermost event, `cause` what it means.
    """

    thread: IntArray
    start: IntArray
    end: IntArray
    row: IntArray
    cause: npt.NDArray[np.int8]

    def of_thread(self, thread: int) -> slice:
        """Positions of one thread's stretches."""
        low = int(np.searchsorted(self.thread, thread, side="left"))
        high = int(np.searchsorted(self.thread, thread, side="right"))
        return slice(low, high)


_BY_KIND = {
    Kind.CPU_OP: Cause.OP,
    Kind.RUNTIME: Cause.LAUNCH,
    Kind.LAUNCH: Cause.LAUNCH,
    Kind.GRAPH_LAUNCH: Cause.LAUNCH,
    Kind.COPY_CALL: Cause.COPY,
    Kind.SYNC_CALL: Cause.SYNC,
    Kind.ALLOC_CALL: Cause.ALLOC,
    Kind.FREE_CALL: Cause.ALLOC,
    Kind.PYTHON: Cause.PYTHON,
    Kind.MODULE: Cause.PYTHON,
    Kind.ANNOTATION: Cause.ANNOTATION,
    Kind.LOADER: Cause.LOADER,
    Kind.COMPILE: Cause.COMPILE,
    Kind.HOST_COLLECTIVE: Cause.COLLECTIVE,
    Kind.GC: Cause.GC,
}


def node_causes(trace: Trace) -> npt.NDArray[np.int8]:
    """Cause of each call-tree node."""
    tree = trace.tree
    table = np.zeros(256, dtype=np.int8)
    for kind, cause in _BY_KIND.items():
        table[kind] = cause
    own = table[tree.kind]
    by_name = _name_causes(trace)[trace.column("name_id")[tree.rows]]
    python = np.isin(tree.kind, (Kind.PYTHON, Kind.CPU_OP))
    own = np.where(python & (by_name != Cause.NOTHING), by_name, own)
    own = _inside_strong(own, tree.parent)
    return _inside_collective(own, tree.parent, tree.kind)


def _name_causes(trace: Trace) -> npt.NDArray[np.int8]:
    result = np.zeros(len(trace.names) + 1, dtype=np.int8)
    tests = (
        (is_loader_frame, Cause.LOADER),
        (is_compile_frame, Cause.COMPILE),
        (is_checkpoint_frame, Cause.CHECKPOINT),
        (is_collective_wait_frame, Cause.COLLECTIVE),
        (is_autograd_wait, Cause.AUTOGRAD),
        (is_wait, Cause.WAIT),
    )
    kind = trace.column("kind")
    host = np.isin(kind, (Kind.PYTHON, Kind.CPU_OP))
    for index in np.unique(trace.column("name_id")[host]):
        name = trace.names[index]
        for test, cause in tests:
            if test(name):
                result[index] = cause
                break
    return result


def _inside_strong(own: npt.NDArray[np.int8], parent: IntArray) -> npt.NDArray[np.int8]:
    """Give everything inside a strong surrounding that surrounding's cause."""
    result = own
    for cause in reversed(STRONG):
        if not (own == cause).any():
            continue
        inside = nearest(own == cause, parent) >= 0
        result = np.where(inside, np.int8(cause), result)
    return result


def _inside_collective(
    own: npt.NDArray[np.int8], parent: IntArray, kind: npt.NDArray[np.uint8]
) -> npt.NDArray[np.int8]:
    """A wait or a sync inside a collective waits for the other ranks."""
    collective = own == Cause.COLLECTIVE
    if not collective.any():
        return own
    inside = nearest(collective, parent) >= 0
    waits = np.isin(own, (Cause.WAIT, Cause.SYNC))
    return np.where(inside & waits & ~np.isin(kind, RUNTIME_KINDS), np.int8(Cause.COLLECTIVE), own)


def host_activity(trace: Trace, causes: npt.NDArray[np.int8] | None = None) -> Activity:
    """Activity of all host threads; `causes` are those of `node_causes` when at hand."""
    segments = trace.tree.segments
    causes = node_causes(trace) if causes is None else causes
    return Activity(
        thread=segments.thread,
        start=segments.start,
        end=segments.end,
        row=segments.row,
        cause=causes[trace.tree.node_of[segments.row]],
    )
