"""Who called whom on each host thread: parents, self time, module path, user frame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kinetoscope.trace.frames import Frame, is_user_file, parse_frame
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray, Trace

#: Host kinds that nest properly. Step marks are left out on purpose: with stacks they cross
#: Python frames (they open inside `step()` of one iteration and close in the next).
TREE_KINDS = tuple(
    k for k in Kind if k < Kind.KERNEL and k not in (Kind.STEP, Kind.OVERHEAD, Kind.OTHER)
)


def enclosing(order_key: IntArray, start: IntArray, end: IntArray) -> IntArray:
    """Parent of each interval: the nearest earlier one in the same group that contains it.

    Args:
        order_key: group (thread) of each interval; the arrays are sorted by
            (group, start, -end).
        start: starts, ns.
        end: ends, ns.

    Returns:
        Position of the parent, -1 for none.

    Containment is "ends no earlier", so a child that overruns its parent by recording noise
    is adopted by the grandparent; see `tolerance` in `call_tree` for the usual one. The search
    is "previous greater element" by pointer jumping: as long as the candidate ends too early,
    so does all that it has already skipped.
    """
    size = start.size
    parent = np.arange(-1, size - 1, dtype=np.int64)
    if size == 0:
        return parent
    parent[np.flatnonzero(np.diff(order_key)) + 1] = -1
    active = np.flatnonzero(parent >= 0)
    while active.size:
        candidate = parent[active]
        too_short = end[candidate] < end[active]
        active = active[too_short]
        parent[active] = parent[parent[active]]
        active = active[parent[active] >= 0]
    return parent


def nearest(flag: npt.NDArray[np.bool_], parent: IntArray) -> IntArray:
    """For each node the nearest node on its way up (itself included) with `flag`; -1: none."""
    found = np.where(flag, np.arange(flag.size), -1)
    if not flag.any():
        return found
    up = parent.copy()
    todo = np.flatnonzero((found < 0) & (up >= 0))
    while todo.size:
        hop = up[todo]
        found[todo] = found[hop]
        up[todo] = up[hop]
        todo = todo[(found[todo] < 0) & (up[todo] >= 0)]
    return found


@dataclass(frozen=True)
class Segments:
    """The innermost event of each thread at each moment.

    Disjoint stretches, sorted by (thread, start). `row` is the event-table row of the innermost
    event. Moments that no event covers are absent.
    """

    thread: IntArray
    start: IntArray
    end: IntArray
    row: IntArray


class CallTree:
    """The host events of a trace as a forest.

    Arrays over *nodes* are in tree order (thread, start, longest first); `rows[node]` is the row
    in the event table, `node_of[row]` the way back (-1 for rows outside the tree).
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        kind = trace.column("kind")
        wanted = np.zeros(256, dtype=bool)
        wanted[list(TREE_KINDS)] = True
        rows = np.flatnonzero(wanted[kind])
        thread = trace.column("thread")[rows]
        start = trace.column("ts_ns")[rows]
        end = start + trace.column("dur_ns")[rows]
        rank = _NESTING_RANK[kind[rows]]
        order = np.lexsort((rank, -end, start, thread))
        self.rows: IntArray = rows[order].astype(np.int64)
        self.thread: IntArray = thread[order].astype(np.int64)
        self.start: IntArray = start[order]
        self.end: IntArray = end[order]
        self.kind = kind[self.rows]
        self.node_of: IntArray = np.full(len(trace), -1, dtype=np.int64)
        self.node_of[self.rows] = np.arange(self.rows.size)

    @cached_property
    def parent(self) -> IntArray:
        """Parent node of each node, -1 for roots.

        Zero-length events at time 0 are what the writer makes of unknown times: never parents.
        """
        return enclosing(self.thread, self.start, self.end)

    @cached_property
    def self_ns(self) -> IntArray:
        """Duration minus that of the direct children, never below zero."""
        duration = self.end - self.start
        own = duration.copy()
        child = np.flatnonzero(self.parent >= 0)
        np.subtract.at(own, self.parent[child], duration[child])
        return np.asarray(np.maximum(own, 0), dtype=np.int64)

    def nearest_of(self, *kinds: Kind) -> IntArray:
        """Nearest enclosing node (itself included) of one of these kinds; -1: none."""
        wanted = np.zeros(256, dtype=bool)
        wanted[list(kinds)] = True
        return nearest(wanted[self.kind], self.parent)

    @cached_property
    def outer_ops(self) -> npt.NDArray[np.bool_]:
        """Which nodes are operators that no other operator called; read-only."""
        above = np.where(self.parent >= 0, self.op[np.maximum(self.parent, 0)], -1)
        outer = np.asarray((self.kind == Kind.CPU_OP) & (above < 0))
        outer.flags.writeable = False
        return outer

    def named(self, test: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
        """Which nodes have a name that passes a test."""
        flags = self._trace.name_flags(test)
        return np.asarray(flags[self._trace.column("name_id")[self.rows]])

    @cached_property
    def frames(self) -> dict[int, Frame | None]:
        """Parsed frame of each name id that occurs as a Python frame."""
        ids = np.unique(self._trace.column("name_id")[self.rows[self.kind == Kind.PYTHON]])
        return {int(i): parse_frame(self._trace.names[i]) for i in ids}

    @cached_property
    def user_name_ids(self) -> IntArray:
        """Name ids that are frames of the user's program."""
        return np.array(
            [i for i, frame in self.frames.items() if frame and is_user_file(frame.file)],
            dtype=np.int64,
        )

    @cached_property
    def user_frame(self) -> IntArray:
        """Innermost frame of the user's program around each node; -1: none."""
        is_user = (self.kind == Kind.PYTHON) & np.isin(
            self._trace.column("name_id")[self.rows], self.user_name_ids
        )
        return nearest(is_user, self.parent)

    @cached_property
    def op(self) -> IntArray:
        """Innermost operator around each node (itself included); -1: none."""
        return self.nearest_of(Kind.CPU_OP)

    @cached_property
    def module(self) -> IntArray:
        """Innermost `nn.Module` frame around each node; -1: none."""
        return self.nearest_of(Kind.MODULE)

    def ancestors(self, node: int) -> list[int]:
        """The nodes above this one, innermost first."""
        chain = []
        node = int(self.parent[node])
        while node >= 0:
            chain.append(node)
            node = int(self.parent[node])
        return chain

    def innermost_at(self, thread: IntArray, ts: IntArray) -> IntArray:
        """Innermost node at each moment (ns) of each thread, in the same order; -1 for none."""
        segments = self.segments
        result = np.full(ts.size, -1, dtype=np.int64)
        for one in np.unique(thread):
            low = int(np.searchsorted(segments.thread, one, side="left"))
            high = int(np.searchsorted(segments.thread, one, side="right"))
            if low == high:
                continue
            mine = np.flatnonzero(thread == one)
            at = np.searchsorted(segments.start[low:high], ts[mine], side="right") - 1 + low
            inside = (at >= low) & (segments.end[np.maximum(at, low)] >= ts[mine])
            node = self.node_of[segments.row[np.maximum(at, low)]]
            result[mine] = np.where(inside, node, -1)
        return result

    @cached_property
    def segments(self) -> Segments:
        """The innermost event of each thread at each moment.

        A node's own stretches are what its children leave over. Children are clipped to
        their parent, so that recording noise gives no time twice.
        """
        return _segments(self)


def _nesting_rank() -> npt.NDArray[np.int8]:
    """Order of events that start and end together: frames contain operators contain calls."""
    rank = np.full(256, 2, dtype=np.int8)
    rank[[Kind.PYTHON, Kind.MODULE]] = 0
    rank[[Kind.ANNOTATION, Kind.LOADER, Kind.HOST_COLLECTIVE, Kind.COMPILE]] = 1
    rank[
        [
            Kind.RUNTIME,
            Kind.LAUNCH,
            Kind.GRAPH_LAUNCH,
            Kind.COPY_CALL,
            Kind.SYNC_CALL,
            Kind.ALLOC_CALL,
            Kind.FREE_CALL,
        ]
    ] = 3
    return rank


_NESTING_RANK = _nesting_rank()


def _segments(tree: CallTree) -> Segments:
    """Cut each node's time by its children: before the first, between two, after the last."""
    parent, start, end = tree.parent, tree.start, tree.end
    size = start.size
    child = np.flatnonzero((parent >= 0) & (end > start))
    child = child[np.argsort(parent[child], kind="stable")]
    owner = parent[child]
    first = np.append(True, owner[1:] != owner[:-1]) if child.size else np.zeros(0, dtype=bool)
    last = np.append(first[1:], True) if child.size else first
    before_start = np.where(first, start[owner], np.roll(end[child], 1))
    leaf = np.ones(size, dtype=bool)
    leaf[owner] = False
    leaf = np.flatnonzero(leaf)
    return _disjoint_segments(
        tree,
        np.concatenate((leaf, owner, owner[last])),
        np.concatenate((start[leaf], before_start, end[child[last]])),
        np.concatenate((end[leaf], start[child], end[owner[last]])),
    )


def _disjoint_segments(tree: CallTree, node: IntArray, start: IntArray, end: IntArray) -> Segments:
    """Sort by (thread, start); where siblings overlap by recording noise, the earlier one wins."""
    keep = end > start
    node, start, end = node[keep], start[keep], end[keep]
    if node.size == 0:
        return Segments(node, start, end, node)
    low = int(start.min())
    span = int(end.max()) - low + 1
    shift = tree.thread[node] * span - low
    order = np.argsort(start + shift, kind="stable")
    node, start, end, shift = node[order], start[order], end[order], shift[order]
    reach = np.maximum.accumulate(end + shift)
    start = np.maximum(start, np.append(start[:1], (reach[:-1] - shift[1:])))
    keep = end > start
    return Segments(tree.thread[node[keep]], start[keep], end[keep], tree.rows[node[keep]])
