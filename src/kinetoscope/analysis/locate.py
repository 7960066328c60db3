"""From events to places in the user's program: function, module, and the exact line if known.

Torch's stack events carry the first line of a *function*. The line of the call itself is known
only from our own capture, from `CallFrom` (torch 2.15 and later), from `Call stack` (old traces),
or from a look into the source file; `Location.exact` says which one it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from kinetoscope.analysis.heavy_rows import heavy_rows
from kinetoscope.analysis.one_place import add_place, without_vague
from kinetoscope.analysis.recorded_lines import RecordedLines
from kinetoscope.analysis.running_frames import running_frames
from kinetoscope.analysis.source_lines import SourceLines
from kinetoscope.analysis.sources import SourceTree
from kinetoscope.result import Location
from kinetoscope.trace.frames import Frame, is_user_file, parse_call_stack
from kinetoscope.trace.trace import IntArray, Trace


@dataclass(frozen=True)
class _Place:
    frame: int
    """Node of the user frame; -1: none."""
    module: int
    """Node of the innermost module; -1: none."""


class Locator:
    """Maps rows of one trace to places."""

    def __init__(self, trace: Trace, source_root: Path | None = None) -> None:
        self._trace = trace
        self._sources = SourceTree(source_root)
        self._paths: dict[int, str] = {}
        self._samples: dict[int, int | None] = {}
        captured = trace.sidecar
        self._recorded = RecordedLines(trace, captured.lines) if captured else None
        self._read = SourceLines(trace, self._sources)

    @cached_property
    def _names(self) -> IntArray:
        return self._trace.column("name_id")

    def nodes(self, rows: IntArray) -> IntArray:
        """Call-tree node whose stack explains each row (the forward's in backward); -1: none."""
        node = self._trace.links.node[rows]
        source = self._trace.links.source_node
        if source.size == 0:  # no host event was recorded
            return np.full(rows.size, -1, dtype=np.int64)
        return np.where(node >= 0, source[np.maximum(node, 0)], -1)

    def frames(self, rows: IntArray) -> IntArray:
        """Node of the user's frame around each row; -1: unknown.

        Work of a thread without the user's frames (the autograd thread, when the forward is not
        in the recording) falls back on what the main thread was doing at that moment.
        """
        tree = self._trace.tree
        if tree.rows.size == 0:
            return np.full(rows.size, -1, dtype=np.int64)
        node = self.nodes(rows)
        frame = np.where(node >= 0, tree.user_frame[np.maximum(node, 0)], -1)
        missing = np.flatnonzero(frame < 0)
        if missing.size:
            frame[missing] = self._main_frame(rows[missing])
        return frame

    def _main_frame(self, rows: IntArray) -> IntArray:
        """User frame of the main thread at the moment of each row's launch."""
        trace, tree = self._trace, self._trace.tree
        launch = trace.links.launch[rows]
        ts = trace.column("ts_ns")
        at = np.where(launch >= 0, ts[np.maximum(launch, 0)], ts[rows])
        segments = tree.segments
        main = trace.steps.thread
        if main < 0:
            user = tree.user_frame[tree.user_frame >= 0]
            if user.size == 0:
                return np.full(rows.size, -1, dtype=np.int64)
            main = int(np.bincount(tree.thread[user]).argmax())
        low = int(np.searchsorted(segments.thread, main, side="left"))
        high = int(np.searchsorted(segments.thread, main, side="right"))
        if low == high:
            return np.full(rows.size, -1, dtype=np.int64)
        i = np.searchsorted(segments.start[low:high], at, side="right") - 1 + low
        inside = (i >= low) & (segments.end[np.maximum(i, low)] > at)
        node = tree.node_of[segments.row[np.maximum(i, low)]]
        return np.where(inside, tree.user_frame[node], -1)

    def locations(
        self,
        rows: IntArray,
        weights: IntArray,
        *,
        calls: Sequence[str] = (),
        top: int = 3,
        inside: IntArray | None = None,
    ) -> tuple[Location, ...]:
        """Places of the rows, heaviest first; () when nothing is known about any of them.

        With `inside`, places in these user frames around the rows, not in the innermost ones.
        """
        if rows.size == 0 or self._trace.tree.rows.size == 0:
            return ()
        frames = self.frames(rows) if inside is None else inside
        node = self.nodes(rows)
        module = np.where(node >= 0, self._trace.tree.module[np.maximum(node, 0)], -1)
        name = np.where(frames >= 0, self._names[self._trace.tree.rows[np.maximum(frames, 0)]], -1)
        some, weights, many = heavy_rows(rows, name, weights)
        line = self._lines(node, frames, some)
        found: dict[tuple[int, str | None, int], list[int]] = {}
        for i in some:
            key = (int(name[i]), self._class_path(int(module[i])), int(line[i]))
            found.setdefault(key, []).append(int(i))
        groups = sorted(found.items(), key=lambda item: -int(weights[item[1]].sum()))
        groups = [g for g in groups if g[0][:2] != (-1, None)] or groups
        found_at: dict[tuple[object, ...], Location] = {}
        weight: dict[tuple[object, ...], int] = {}
        for key, members in groups[: top + _SPARE]:
            place = self._location(key, rows[members], calls)
            if place is not None:
                place = replace(place, count=max(round(float(many[members].sum())), 1))
                at = add_place(found_at, place)
                weight[at] = weight.get(at, 0) + int(weights[members].sum())
        heaviest = sorted(found_at, key=lambda at: -weight[at])
        return without_vague(found_at[at] for at in heaviest[:top])

    def at(
        self, file: str, line: int, function: str | None, count: int, *, exact: bool
    ) -> Location:
        """A place that is known from elsewhere than the trace, with its file as a trace names it.

        Args:
            file: path on the machine that ran the program.
            line: in the file, from 1.
            function: name of the function; None when it is not known.
            count: how often it was seen.
            exact: whether the line is the one meant, not the function's first.
        """
        short = self._sources.short(file)
        text = self._sources.line(short, line)
        return Location(short, line, function, None, exact, count, text)

    def _lines(self, node: IntArray, frames: IntArray, some: Sequence[int]) -> IntArray:
        """Recorded line of each of some rows, in its frame; 0: unknown."""
        found = np.zeros(node.size, dtype=np.int64)
        if self._recorded is not None:
            chosen = np.fromiter(some, dtype=np.int64)
            user = self._trace.tree.user_frame
            same = (node[chosen] >= 0) & (user[np.maximum(node[chosen], 0)] == frames[chosen])
            found[chosen] = self._recorded.of(np.where(same, node[chosen], -1))
        chosen = np.fromiter(some, dtype=np.int64)
        open_ = (found[chosen] == 0) & (node[chosen] >= 0) & (frames[chosen] >= 0)
        for i in self._read.readable(chosen[open_], frames):
            at, frame = int(node[i]), int(frames[i])
            sampled = self._sampled(frame) if at == frame else None  # seen, not inferred
            found[i] = sampled or self._read.of(at, frame)
        return found

    def _sampled(self, node: int) -> int | None:
        """The line of a frame that our own capture saw most often; None without samples."""
        if self._recorded is None:
            return None
        name = int(self._names[self._trace.tree.rows[node]])
        if name not in self._samples:
            frame = self._trace.tree.frames.get(name)
            self._samples[name] = self._recorded.sampled_line(frame) if frame else None
        return self._samples[name]

    def _location(
        self, key: tuple[int, str | None, int], rows: IntArray, calls: Sequence[str]
    ) -> Location | None:
        name_id, module, captured = key
        exact = self._recorded_line(rows)
        if exact is not None:
            file, line, function = exact
            return Location(
                file, line, function, module, True, rows.size, self._sources.line(file, line)
            )
        if name_id < 0:
            return Location(module=module, count=rows.size) if module else None
        frame = self._trace.tree.frames.get(name_id)
        if frame is None:
            return None
        called = captured or self._guessed_line(frame, calls)
        shown = called or self._first_line(frame, rows)
        snippet = self._sources.line_of(frame, shown) if shown is not None else None
        return Location(
            file=frame.file,
            line=shown,
            function=self._function(frame, rows),
            module=module,
            exact=called is not None,
            count=rows.size,
            snippet=snippet,
        )

    def _function(self, frame: Frame, rows: IntArray) -> str:
        """Name of the function; for a generator or a lambda that of the function around it.

        Nobody looks for `<genexpr>`; its line says where in that function it is.
        """
        if not frame.function.startswith("<"):
            return frame.function
        tree = self._trace.tree
        node = int(self.frames(rows[:1])[0])
        while node >= 0:
            outer = tree.frames.get(int(self._names[tree.rows[node]]))
            named = outer is not None and not outer.function.startswith("<")
            if outer is not None and named and outer.file == frame.file:
                return outer.function
            parent = int(tree.parent[node])
            node = int(tree.user_frame[parent]) if parent >= 0 else -1
        return frame.function

    def _first_line(self, frame: Frame, rows: IntArray) -> int | None:
        """First line of the function; None where torch gives another one and no source is near."""
        known = self._sources.first_line(frame)
        if known is not None:
            return known
        node = int(self.frames(rows[:1])[0])
        return None if node >= 0 and self._running[node] else frame.line

    @cached_property
    def _running(self) -> npt.NDArray[np.bool_]:
        return running_frames(self._trace)

    def _guessed_line(self, frame: Frame, calls: Sequence[str]) -> int | None:
        """The only call that fits, by the source; else the line that was sampled most."""
        line = self._sources.call_line(frame, calls) if calls else None
        if line is None and self._recorded is not None:
            line = self._recorded.sampled_line(frame)
        return line

    def _recorded_line(self, rows: IntArray) -> tuple[str, int, str] | None:
        """The innermost user line of a recorded call stack of any of the rows' operators."""
        ops = self._trace.links.op[rows[:50]]
        extra = self._trace.column("extra_id")
        for row in ops[ops >= 0]:
            text = extra[row]
            if text < 0:
                continue
            for file, line, function in parse_call_stack(self._trace.texts[text]):
                if is_user_file(file):
                    return file, line, function
        return None

    @cached_property
    def _outer_module(self) -> IntArray:
        """Module around each node, itself left out; -1: none."""
        tree = self._trace.tree
        parent = tree.parent
        return np.where(parent >= 0, tree.module[np.maximum(parent, 0)], -1)

    def _class_path(self, module: int) -> str | None:
        """`GPT / Block / Linear`: classes from the outside in, instance numbers dropped.

        Remembered per call of a module: many events share one.
        """
        if module < 0:
            return None
        if module not in self._paths:
            names: list[str] = []
            node = module
            while node >= 0 and len(names) < _DEEPEST:
                names.append(self._trace.names[self._names[self._trace.tree.rows[node]]])
                node = int(self._outer_module[node])
            self._paths[module] = " / ".join(_class_of(name) for name in reversed(names))
        return self._paths[module]


_SPARE = 3
"""Groups that are looked at beyond those wanted, since some turn out to be the same place."""
_DEEPEST = 4
"""Modules named at most, from the inside."""


def _class_of(name: str) -> str:
    """`nn.Module: Linear_3` -> `Linear`."""
    return name.removeprefix("nn.Module: ").rsplit("_", 1)[0]
