"""Call paths of the steady steps with their time on host and device, idle time included."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.result.view import Flame
from kinetoscope.trace.kinds import DEVICE_WORK, Kind
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.trace import IntArray
from kinetoscope.viewdata.depth import depths
from kinetoscope.viewdata.idle import gap_starts, idle_pieces
from kinetoscope.viewdata.names import NamePool
from kinetoscope.viewdata.own_events import own_frames, own_threads, parents_without
from kinetoscope.viewdata.pack import pack

SMALLEST = 0.0004
"""Paths below this share of both sums count for their parent."""


class _Paths:
    """A growing forest of paths: parent, name and three sums each."""

    def __init__(self) -> None:
        self.parent: IntArray = np.empty(0, dtype=np.int64)
        self.name: IntArray = np.empty(0, dtype=np.int64)
        self.sums: npt.NDArray[np.int64] = np.empty((0, 3), dtype=np.int64)

    def add(self, parent: IntArray, name: IntArray) -> IntArray:
        """Number of each (parent, name), new ones made; none of them may exist before."""
        key = ((parent + 1) << 32) | name
        distinct, position = np.unique(key, return_inverse=True)
        base = self.parent.size
        self.parent = np.concatenate((self.parent, (distinct >> 32) - 1))
        self.name = np.concatenate((self.name, distinct & 0xFFFFFFFF))
        more = np.zeros((distinct.size, 3), dtype=np.int64)
        self.sums = np.concatenate((self.sums, more))
        return np.asarray(position, dtype=np.int64) + base

    def count(self, path: IntArray, column: int, values: IntArray) -> None:
        """Add values to one sum (0 host, 1 device, 2 calls) of each path."""
        np.add.at(self.sums[:, column], path, values)


def flame(analysis: Analysis) -> Flame | None:
    """Build the tree; None when nothing was recorded."""
    tree = analysis.trace.tree
    pool, paths = NamePool(), _Paths()
    of_node = _host_paths(analysis, pool, paths)
    low, high = analysis.times.host_window
    segments = tree.segments
    length = np.minimum(segments.end, high) - np.maximum(segments.start, low)
    theirs = ~own_threads(analysis.trace)
    inside = (length > 0) & theirs[segments.thread]
    paths.count(of_node[tree.node_of[segments.row[inside]]], 0, length[inside])
    starts = (tree.start >= low) & (tree.start < high) & theirs[tree.thread]
    paths.count(of_node[starts], 2, np.ones(int(starts.sum()), dtype=np.int64))
    _device(analysis, pool, paths, of_node)
    _idle(analysis, pool, paths, of_node)
    if paths.sums[:, :2].sum() == 0:
        return None
    return _written(paths, pool, (analysis.steps, analysis.steps_on_host))


def _host_paths(analysis: Analysis, pool: NamePool, paths: _Paths) -> IntArray:
    """Path of each node of the call tree, level by level."""
    trace, tree = analysis.trace, analysis.trace.tree
    name = _without_numbers(analysis, pool)
    own = own_frames(trace)
    parents = parents_without(tree.parent, own)
    depth = np.where(own, -1, depths(parents))
    of_node = np.full(tree.rows.size, -1, dtype=np.int64)
    labels = np.array(
        [
            pool.add(
                "main thread" if i == trace.steps.thread else (t.name or f"thread {t.tid}"),
                "other",
            )
            for i, t in enumerate(trace.threads)
        ],
        dtype=np.int64,
    )
    threads = np.unique(tree.thread)
    if threads.size == 0:
        return of_node
    root = np.full(len(trace.threads), -1, dtype=np.int64)
    root[threads] = paths.add(np.full(threads.size, -1), labels[threads])
    of_node[own] = root[tree.thread[own]]
    for level in range(int(depth.max(initial=-1)) + 1):
        nodes = np.flatnonzero(depth == level)
        parent = root[tree.thread[nodes]] if level == 0 else of_node[parents[nodes]]
        of_node[nodes] = paths.add(parent, name[nodes])
    return of_node


def _without_numbers(analysis: Analysis, pool: NamePool) -> IntArray:
    """Name of each node; modules without their number, so that equal layers are one path."""
    trace, tree = analysis.trace, analysis.trace.tree
    name = pool.of_rows(trace, tree.rows)
    modules = np.flatnonzero(tree.kind == Kind.MODULE)
    ids = trace.column("name_id")[tree.rows[modules]]
    classes = {
        int(i): pool.add(
            trace.names[i].removeprefix("nn.Module: ").rpartition("_")[0] or trace.names[i],
            "module",
        )
        for i in np.unique(ids)
    }
    name[modules] = [classes[int(i)] for i in ids]
    return name


def _device(analysis: Analysis, pool: NamePool, paths: _Paths, of_node: IntArray) -> None:
    """Device work of the step window, under the path that launched it."""
    trace = analysis.trace
    rows = analysis.in_window(rows_of(trace, *DEVICE_WORK))
    if rows.size == 0:
        return
    node = trace.links.node[rows]
    parent = np.where(node >= 0, of_node[np.maximum(node, 0)] if of_node.size else -1, -1)
    if np.any(parent < 0):
        unknown = paths.add(np.array([-1]), np.array([pool.add("launch not recorded", "other")]))
        parent = np.where(parent < 0, unknown[0], parent)
    path = paths.add(parent, pool.of_rows(trace, rows))
    paths.count(path, 1, trace.column("dur_ns")[rows])
    paths.count(path, 2, np.ones(rows.size, dtype=np.int64))


def _idle(analysis: Analysis, pool: NamePool, paths: _Paths, of_node: IntArray) -> None:
    """Idle time: each piece of a gap under what the host was doing at that moment."""
    idle = idle_pieces(analysis)
    if idle.start.size == 0:
        return
    length = idle.end - idle.start
    label = np.array(
        [pool.add(f"idle: {text}", f"idle_{class_}") for class_, text in idle.reasons],
        dtype=np.int64,
    )
    row = np.where(idle.row >= 0, idle.row, _launch_before(analysis, idle.start))
    node = np.where(row >= 0, analysis.trace.tree.node_of[np.maximum(row, 0)], -1)
    parent = np.where(node >= 0, of_node[np.maximum(node, 0)] if of_node.size else -1, -1)
    parent = _lifted(paths, parent, length)
    if np.any(parent < 0):
        top = paths.add(np.array([-1]), np.array([pool.add("no host event", "other")]))
        parent = np.where(parent < 0, top[0], parent)
    path = paths.add(parent, label[idle.reason])
    paths.count(path, 1, length)
    # Many pieces of one gap may lie under one path: that is one gap there.
    gap = np.cumsum(gap_starts(idle))
    once = np.unique(path * (gap.size + 1) + gap) // (gap.size + 1)
    paths.count(once, 2, np.ones(once.size, dtype=np.int64))


def _launch_before(analysis: Analysis, start: IntArray) -> IntArray:
    """Launch that returned inside its gap at these moments, its work not yet begun; -1: none."""
    gaps = analysis.gaps
    gap = np.searchsorted(gaps.start, start, side="right") - 1
    late = (gaps.host_end[gap] == start) & (gaps.host_end[gap] > gaps.start[gap])
    return np.where(late, gaps.launch[gap], -1)


def _lifted(paths: _Paths, path: IntArray, idle_ns: IntArray) -> IntArray:
    """Move idle time from paths with little of it up to the first one that has enough.

    A label too small to be written would leave its time to the parent without a reason.
    """
    own = np.zeros((paths.parent.size, 1), dtype=np.int64)
    known = path >= 0
    np.add.at(own[:, 0], path[known], idle_ns[known])
    total = _subtree(paths.parent, own)[:, 0]
    least = SMALLEST * (paths.sums[:, 1].sum() + idle_ns.sum())
    target = np.arange(paths.parent.size)
    for small in np.flatnonzero(total < least).tolist():
        above = paths.parent[small]
        if above >= 0:
            target[small] = target[above]
    return np.where(known, target[np.maximum(path, 0)] if target.size else -1, -1)


def _written(paths: _Paths, pool: NamePool, steps: tuple[int, int]) -> Flame:
    """Fold small paths into their parents and write the rest depth first, largest first."""
    parent, own = paths.parent, paths.sums
    total = _subtree(parent, own)
    least = np.maximum(SMALLEST * own.sum(axis=0), 1)
    keep = (total[:, 0] >= least[0]) | (total[:, 1] >= least[1])
    # A kept path has kept ancestors: their sums are at least as large.
    sums = own.copy()
    pruned = 0
    for path in np.flatnonzero(~keep)[::-1]:
        up = parent[path]
        pruned += int(own[path, 0])
        if up >= 0:
            sums[up, :2] += sums[path, :2]
    order, depth = _depth_first(parent, total, keep)
    return Flame(
        names=pool.names(),
        name=pack(paths.name[order]),
        depth=pack(depth),
        host_ns=pack(sums[order, 0]),
        device_ns=pack(sums[order, 1]),
        calls=pack(own[order, 2]),
        steps=steps[0],
        host_steps=steps[1],
        pruned_ns=pruned,
    )


def _subtree(parent: IntArray, own: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Sums of each path with all below it; parents stand before their children."""
    total: npt.NDArray[np.int64] = own.copy()
    for path in range(parent.size - 1, -1, -1):
        if parent[path] >= 0:
            total[parent[path]] += total[path]
    return total


def _depth_first(
    parent: IntArray, total: npt.NDArray[np.int64], keep: npt.NDArray[np.bool_]
) -> tuple[IntArray, IntArray]:
    children: dict[int, list[int]] = {}
    for path in np.flatnonzero(keep).tolist():
        children.setdefault(int(parent[path]), []).append(path)
    order: list[int] = []
    depth: list[int] = []
    stack: list[tuple[int, int]] = [
        (path, 0) for path in _largest_first(children.get(-1, []), total)
    ]
    while stack:
        path, level = stack.pop()
        order.append(path)
        depth.append(level)
        stack += [(child, level + 1) for child in _largest_first(children.get(path, []), total)]
    return np.array(order, dtype=np.int64), np.array(depth, dtype=np.int64)


def _largest_first(paths: list[int], total: npt.NDArray[np.int64]) -> list[int]:
    """For a stack: the largest is popped first."""
    return sorted(paths, key=lambda p: (int(total[p, 0] + total[p, 1]), -p))
