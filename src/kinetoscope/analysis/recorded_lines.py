"""Exact lines of events, from what our own capture recorded next to the trace.

Three tables, from the most to the least direct:

calls      each call out of a frame of the program, by its start, with the line that called
operators  operators that Python calls without a call event (`a + b`), in the order of one step
samples    lines that a function was at, for host work inside it
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

import numpy as np

from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.captured import Lines, Sampled
from kinetoscope.trace.frames import Frame
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray, Trace

_FEWEST_SAMPLES = 3
_CLEAR = 0.3
"""Share of a function's samples from which on its hottest line is the place."""


class RecordedLines:
    """Looks lines up for nodes of one trace's call tree."""

    def __init__(self, trace: Trace, lines: Lines) -> None:
        self._trace = trace
        self._lines = lines

    def of(self, nodes: IntArray) -> IntArray:
        """Line in the innermost frame of the program around each node; 0: unknown."""
        found = np.zeros(nodes.size, dtype=np.int64)
        known = nodes >= 0
        if not known.any():
            return found
        node = np.where(known, nodes, 0)
        found = np.where(known, self._call_line[node], 0)
        for i in np.flatnonzero(known & (found == 0)):
            found[i] = self._operator_line.get(self._seen_operator(int(nodes[i])), 0)
        return found

    @cached_property
    def _call_line(self) -> IntArray:
        """Line by the call that leads from the program's innermost frame to each node."""
        tree, calls = self._trace.tree, self._lines.calls
        size = tree.rows.size
        if not calls.at or len(calls.at) != len(calls.line) or not size:
            return np.zeros(size, dtype=np.int64)
        at = np.cumsum(np.array(calls.at, dtype=np.int64)) - self._trace.header.base_time_ns
        lines = np.array(calls.line, dtype=np.int64)
        place = np.minimum(np.searchsorted(at, tree.start), at.size - 1)
        python = (tree.kind == Kind.PYTHON) | (tree.kind == Kind.MODULE)
        entry = python & (at[place] == tree.start)
        near = nearest(entry, tree.parent)
        above = tree.parent[np.maximum(near, 0)]
        caller = np.where(above >= 0, tree.user_frame[np.maximum(above, 0)], -1)
        # An entry in the same frame as the node: else the node is an operator of a frame that was
        # itself entered there.
        fits = (near >= 0) & (caller == tree.user_frame) & (caller >= 0)
        return np.where(fits, lines[place[np.maximum(near, 0)]], 0)

    # ---- operators -----------------------------------------------------------------------

    @cached_property
    def _tables(self) -> dict[int, dict[str, list[int]]]:
        """Table of each name id of a frame of the program."""
        names = self._trace.names
        by_end: dict[str, list[str]] = defaultdict(list)
        for key in self._lines.operators:
            by_end[key.replace("\\", "/").rpartition("/")[2]].append(key)
        found = {}
        for name_id in self._trace.tree.user_name_ids:
            name = names[name_id].replace("\\", "/")
            for key in by_end.get(name.rpartition("/")[2], ()):
                if key == name or key.endswith("/" + name) or name.endswith("/" + key):
                    found[int(name_id)] = self._lines.operators[key]
        return found

    def _table_of(self, node: int) -> dict[str, list[int]]:
        frame = int(self._trace.tree.user_frame[node])
        if frame < 0:
            return {}
        return self._tables.get(int(self._name_of[frame]), {})

    @cached_property
    def _name_of(self) -> IntArray:
        names: IntArray = self._trace.column("name_id")[self._trace.tree.rows]
        return names

    def _seen_operator(self, node: int) -> int:
        """The outermost operator around a node, in the same frame, that the dispatcher saw."""
        tree, names = self._trace.tree, self._trace.names
        table = self._table_of(node)
        if not table:
            return -1
        frame, found = tree.user_frame[node], -1
        while node >= 0 and tree.user_frame[node] == frame and node != frame:
            if tree.kind[node] == Kind.CPU_OP and names[self._name_of[node]] in table:
                found = node
            node = int(tree.parent[node])
        return found

    @cached_property
    def _operator_line(self) -> dict[int, int]:
        """Line of each node that the dispatcher saw: the n-th of its step and function."""
        tree, trace = self._trace.tree, self._trace
        ids = list(self._tables)
        frames = np.where(tree.user_frame >= 0, self._name_of[np.maximum(tree.user_frame, 0)], -1)
        nodes = np.flatnonzero((tree.kind == Kind.CPU_OP) & np.isin(frames, ids))
        step = trace.steps.of(tree.start[nodes])
        groups: dict[tuple[int, int, str], list[int]] = defaultdict(list)
        for node, number in zip(nodes.tolist(), step.tolist(), strict=True):
            if self._seen_operator(node) == node:
                name = trace.names[self._name_of[node]]
                groups[int(frames[node]), number, name].append(node)
        found = {}
        for (frame, _, name), members in groups.items():
            lines = self._tables[frame][name]
            if len(set(lines)) == 1:
                found.update(dict.fromkeys(members, lines[0]))
            elif len(lines) == len(members):
                found.update(zip(members, lines, strict=True))
        return found

    # ---- samples -------------------------------------------------------------------------

    def sampled_line(self, frame: Frame) -> int | None:
        """The hottest line of a function, if one stands out."""
        return hottest(self._lines.samples, frame)


def hottest(samples: list[Sampled], frame: Frame) -> int | None:
    """The line with most samples of a function; None when there are few or none stands out."""
    mine = [
        (count, line)
        for file, first, function, line, count in samples
        if first == frame.line and function == frame.function and _same(file, frame.file)
    ]
    total = sum(count for count, _ in mine)
    if total < _FEWEST_SAMPLES:
        return None
    count, line = max(mine)
    return line if count >= _CLEAR * total else None


def _same(path: str, recorded: str) -> bool:
    path = path.replace("\\", "/")
    return path == recorded or path.endswith("/" + recorded.lstrip("./"))
