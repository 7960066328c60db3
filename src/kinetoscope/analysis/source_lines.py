"""The line of an event, found by reading the source next to the recording.

What a call of a function did (its direct children in the call tree) is put beside what its source
says, in order: the calls, operators and indices. The alignment with most agreement tells the line
of each child. Loops may go back to their beginning, branches may be left out.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import defaultdict
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis.source_calls import Token, only_hot_line, tokens_of
from kinetoscope.analysis.sources import SourceTree
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray, Trace

FloatArray = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Label = tuple[frozenset[str], bool]
"""Names that the source may have for an event, and whether any call may have made it."""

_NAMED, _ANY, _LEFT_OUT, _AGAIN = 3.0, 1.0, -0.2, -0.3
"""Agreement by name and without; a call that made no event; a loop that starts over."""
_MOST_CHILDREN, _MOST_TOKENS = 600, 400
_AGREE = 0.5
"""Part of the children with a name that must be found, for the source to be the one that ran."""
_MOSTLY = 0.4
"""Part of a function's own time on one line from which on that line is the place."""
_BUILTIN = re.compile(r"<built-in (?:method|function) ([\w]+)")
_PASSED_ON = frozenset(
    "wrapped wrapper inner _fn decorate_context _call_impl _wrapped_call_impl __call__ __init__ "
    "__new__ forward <lambda>".split()
)
_SHOWN = (Kind.PYTHON, Kind.MODULE, Kind.CPU_OP)


class SourceLines:
    """Looks up lines of one trace's events in the sources."""

    def __init__(self, trace: Trace, sources: SourceTree) -> None:
        self._trace, self._sources = trace, sources
        self._functions: dict[int, tuple[list[Token], int | None] | None] = {}
        self._aligned: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        self._of_frame: dict[int, dict[int, int]] = {}
        self._labels: dict[int, Label] = {}

    def readable(self, which: IntArray, frames: IntArray) -> list[int]:
        """Of these positions those whose frame (a call-tree node each) has its source at hand."""
        if not which.size:
            return []
        names, position = np.unique(self._names[frames[which]], return_inverse=True)
        known = np.array([self._function(int(n)) is not None for n in names], dtype=bool)
        return [int(i) for i in which[known[position]]]

    def of(self, node: int, frame: int) -> int:
        """Line in a user frame on which an event inside it was called; 0: unknown.

        Args:
            node: call-tree node of the event, inside the frame or the frame itself.
            frame: call-tree node of the user frame.
        """
        known = self._function(int(self._names[frame]))
        if known is None:
            return 0
        if frame not in self._of_frame:
            self._of_frame[frame] = self._lines(frame, known[0])
        lines = self._of_frame[frame]
        if node == frame:
            return known[1] or self._own_line(frame, lines)
        return lines.get(self._child(node, frame), 0)

    @cached_property
    def _names(self) -> IntArray:
        names: IntArray = self._trace.column("name_id")[self._trace.tree.rows]
        return names

    def _function(self, name_id: int) -> tuple[list[Token], int | None] | None:
        """Tokens of a frame's function and the only line its own time can be on."""
        if name_id not in self._functions:
            frame = self._trace.tree.frames.get(name_id)
            found: ast.AST | None = self._sources.function(frame) if frame else None
            tokens = tokens_of(found) if found is not None else []
            usable = found is not None and len(tokens) <= _MOST_TOKENS
            hot = only_hot_line(found) if found is not None else None
            self._functions[name_id] = (tokens, hot) if usable else None
        return self._functions[name_id]

    def _child(self, node: int, frame: int) -> int:
        parent = self._trace.tree.parent
        while node >= 0 and parent[node] != frame:
            node = int(parent[node])
        return node

    def _lines(self, frame: int, tokens: list[Token]) -> dict[int, int]:
        """Line of each direct child of a frame, as far as known."""
        children = self._children(frame)
        if not tokens or not children.size:
            return {}
        first, rest = children[:_MOST_CHILDREN], children[_MOST_CHILDREN:]
        key = int(self._names[frame]), tuple(self._names[first].tolist())
        if key not in self._aligned:
            self._aligned[key] = align([self._label(int(n)) for n in first], tokens)
        lines = self._aligned[key]
        found = {n: line for n, line in zip(first.tolist(), lines, strict=True) if line}
        # A long loop goes on as it began: what always was on one line still is.
        of_label: dict[Label, set[int]] = defaultdict(set)
        for n, line in zip(first.tolist(), lines, strict=True):
            of_label[self._label(n)].add(line)
        for n in rest.tolist():
            known = of_label.get(self._label(n), set())
            if len(known) == 1:
                found[n] = next(iter(known))
        return found

    def _own_line(self, frame: int, lines: dict[int, int]) -> int:
        """The line that most of a frame's own time is on: it passes before the line's next call.

        Between calls on two lines the time may belong to either, or to lines in between.
        """
        tree = self._trace.tree
        children = [n for n in self._children(frame).tolist() if n in lines]
        spent: dict[int, int] = defaultdict(int)
        for before, after in itertools.pairwise(children):
            if lines[before] == lines[after]:
                spent[lines[after]] += int(tree.start[after] - tree.end[before])
        line = max(spent, key=lambda key: spent[key], default=0)
        return line if line and spent[line] >= _MOSTLY * tree.self_ns[frame] else 0

    def _children(self, frame: int) -> IntArray:
        tree = self._trace.tree
        stop = int(np.searchsorted(tree.thread, tree.thread[frame], side="right"))
        last = frame + 1 + int(np.searchsorted(tree.start[frame + 1 : stop], tree.end[frame]))
        inside = np.arange(frame + 1, last)
        mine = (tree.parent[inside] == frame) & np.isin(tree.kind[inside], _SHOWN)
        return np.asarray(inside[mine], dtype=np.int64)

    def _label(self, node: int) -> Label:
        name_id = int(self._names[node])
        if name_id not in self._labels:
            self._labels[name_id] = self._read(node)
        return self._labels[name_id]

    def _read(self, node: int) -> Label:
        tree = self._trace.tree
        name = self._trace.names[int(self._names[node])]
        if tree.kind[node] == Kind.MODULE:
            return frozenset(), True
        if tree.kind[node] == Kind.CPU_OP:
            return frozenset({short_name(name)}), False
        builtin = _BUILTIN.match(name)
        if builtin:
            return frozenset({builtin[1]}), False
        frame = tree.frames.get(int(self._names[node]))
        if frame is None:
            return frozenset(), False
        names = {frame.function}
        if frame.function in _PASSED_ON:  # a wrapper is called by the name of what it wraps
            for inner in self._children(node)[:3]:
                names |= self._read(int(inner))[0]
        return frozenset(names), True


def align(labels: list[Label], tokens: list[Token]) -> list[int]:
    """Line of each event by the best alignment; 0 where it has none or the source does not fit."""
    score, named = _agreement(labels, tokens)
    useful = np.flatnonzero((score > 0).any(axis=1))
    if not useful.size:
        return [0] * len(labels)
    step = _transitions(tokens)
    best, came = score[useful[0]] + _from_start(tokens), []
    best = np.where(score[useful[0]] > 0, best, -np.inf)
    for event in useful[1:]:
        through = best[:, None] + step
        origin = through.argmax(axis=0)
        new = np.where(score[event] > 0, through.max(axis=0) + score[event], -np.inf)
        # An event that nothing fits at this point is left out: everybody stays where they are.
        stay = best - _ANY
        keep = stay > new
        came.append(np.where(keep, -1, origin))
        best = np.where(keep, stay, new)
    at = int(best.argmax())
    chosen = [0] * len(labels)
    hits = 0
    for event, origin in zip(useful[::-1].tolist(), [*came[::-1], None], strict=True):
        if origin is not None and origin[at] < 0:
            continue
        if score[event, at] > 0:
            chosen[event] = tokens[at].line
            hits += bool(named[event, at])
        if origin is not None:
            at = int(origin[at])
    must = named.any(axis=1) | np.array([not wild for _, wild in labels])
    return chosen if hits >= _AGREE * must.sum() else [0] * len(labels)


def _agreement(
    labels: list[Label], tokens: list[Token]
) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    named = np.array([[bool(names & t.names) for t in tokens] for names, _ in labels], dtype=bool)
    loose = np.array([[wild and t.call for t in tokens] for _, wild in labels], dtype=bool)
    return np.where(named, _NAMED, np.where(loose, _ANY, 0.0)), named


def _from_start(tokens: list[Token]) -> FloatArray:
    return _LEFT_OUT * _required(tokens)[:-1]


def _required(tokens: list[Token]) -> FloatArray:
    """How many tokens that must make an event lie before each, and in all."""
    return np.concatenate(([0.0], np.cumsum([float(not t.optional) for t in tokens])))


def _transitions(tokens: list[Token]) -> FloatArray:
    """Cost of going from one token to the next; -inf where Python cannot."""
    size = len(tokens)
    before = _required(tokens)
    i, j = np.indices((size, size))
    forward = _LEFT_OUT * np.maximum(before[j] - before[i + 1], 0)
    result = np.where(j > i, forward, -np.inf)
    for number in {n for t in tokens for n in t.loops}:
        members = np.flatnonzero([number in t.loops for t in tokens])
        first, last = members[0], members[-1] + 1
        a, b = np.meshgrid(members, members, indexing="ij")
        cost = _AGAIN + _LEFT_OUT * (before[last] - before[a + 1] + before[b] - before[first])
        back = b <= a
        result[a[back], b[back]] = np.maximum(result[a[back], b[back]], cost[back])
    for k, token in enumerate(tokens):
        if token.many:
            result[k, k] = max(result[k, k], 0.0)
    return result


__all__ = ["SourceLines", "align"]
