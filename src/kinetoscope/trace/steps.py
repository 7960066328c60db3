"""Step windows on the host, and what marks them.

A step begins where its mark begins and ends where the next one begins (M-1). Device events
belong to the step in which they were *launched*; `kinetoscope.metrics.step_time` does that part.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from kinetoscope.result.vocabulary import StepSource
from kinetoscope.trace.frames import is_graph_call
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.step_calls import repeated_calls
from kinetoscope.trace.trace import IntArray, Trace

_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True)
class Steps:
    """Host edges of the steps, ns: step i is [edges[i], edges[i + 1]).

    Attributes:
        source: what marks the steps.
        name: the repeating mark, for people.
        thread: index of the thread that carries the marks; -1 when no mark does.
    """

    edges: IntArray
    source: StepSource
    name: str = ""
    thread: int = -1

    @property
    def count(self) -> int:
        """Number of complete steps."""
        return max(len(self.edges) - 1, 0)

    @property
    def start(self) -> int:
        """First edge, ns."""
        return int(self.edges[0])

    @property
    def end(self) -> int:
        """Last edge, ns."""
        return int(self.edges[-1])

    def of(self, at: IntArray) -> IntArray:
        """Step in which each moment lies; -1 before the first and after the last."""
        index = np.searchsorted(self.edges, at, side="right") - 1
        return np.where((index >= 0) & (index < self.count), index, -1)


def find_steps(trace: Trace) -> Steps:
    """Find the steps by the best mark there is."""
    found = _profiler_steps(trace) or _annotation_steps(trace)
    if found is not None:
        return found
    for find in (_call_steps, _loop_steps, _graph_steps, _op_steps):
        steps = find(trace)
        if steps is not None:
            return steps
    return _whole_trace(trace)


def _spans(trace: Trace, rows: IntArray) -> tuple[IntArray, IntArray]:
    start = trace.column("ts_ns")[rows]
    return start, start + trace.column("dur_ns")[rows]


def _profiler_steps(trace: Trace) -> Steps | None:
    rows = rows_of(trace, Kind.STEP)
    if rows.size == 0:
        return None
    threads = trace.column("thread")[rows]
    main = int(np.bincount(threads).argmax())
    rows = rows[threads == main]
    start, end = _spans(trace, rows)
    complete = _captured_steps(trace)
    edges = np.append(start, end[-1])
    if complete is not None and 0 < complete < rows.size:
        edges = start[: complete + 1]
    return Steps(np.maximum.accumulate(edges), "profiler_step", "ProfilerStep", main)


def _captured_steps(trace: Trace) -> int | None:
    """Complete steps by our own capture, which may have ended in the middle of one."""
    captured = trace.sidecar
    return captured.windows[-1].steps if captured is not None and captured.windows else None


def _annotation_steps(trace: Trace) -> Steps | None:
    """The outermost annotation that repeats and whose repetitions span most of the recording."""
    rows = rows_of(trace, Kind.ANNOTATION, Kind.LOADER)
    compiled = np.array([is_graph_call(name) for name in trace.names] + [False])
    rows = rows[~compiled[trace.column("name_id")[rows]]]
    if rows.size < 3:
        return None
    start, end = _spans(trace, rows)
    low, high = _host_extent(trace)
    key = {i: _NUMBERS.sub("#", trace.names[i]) for i in set(trace.column("name_id")[rows])}
    labels = np.array([key[i] for i in trace.column("name_id")[rows]])
    threads = trace.column("thread")[rows]
    best: tuple[float, Steps] | None = None
    for label in dict.fromkeys(labels):
        mine = np.flatnonzero(labels == label)
        if mine.size < 3 or np.unique(threads[mine]).size > 1:
            continue
        steps = _from_repetition(start[mine], end[mine], str(label), int(threads[mine][0]))
        if steps is None:
            continue
        cover = (steps.end - steps.start) / max(high - low, 1)
        # Few, long repetitions are the loop; many short ones are inside it.
        score = cover - 0.02 * np.log2(mine.size)
        if cover >= 0.5 and (best is None or score > best[0]):
            best = score, steps
    return best[1] if best else None


def _from_repetition(start: IntArray, end: IntArray, name: str, thread: int) -> Steps | None:
    if np.any(start[1:] < end[:-1]):
        return None
    period = np.diff(start)
    if np.median(period) <= 0 or np.max(period) > 20 * np.median(period):
        return None
    filled = float(np.sum(end - start) / max(end[-1] - start[0], 1))
    edges = np.append(start, end[-1]) if filled > 0.7 else start
    return Steps(edges, "annotation", name, thread)


def _call_steps(trace: Trace) -> Steps | None:
    """The outermost repeated call of a function or module, where stacks were recorded."""
    calls = repeated_calls(trace)
    if calls is None:
        return None
    return _from_repetition(calls.start, calls.end, calls.name, calls.thread)


def _loop_steps(trace: Trace) -> Steps | None:
    """Calls of the outermost `nn.Module`, as an inference server makes them."""
    rows = rows_of(trace, Kind.MODULE)
    if rows.size < 3:
        return None
    start, end = _spans(trace, rows)
    threads = trace.column("thread")[rows]
    main = int(np.bincount(threads).argmax())
    on_main = threads == main
    rows, start, end = rows[on_main], start[on_main], end[on_main]
    reach = np.maximum.accumulate(end)
    outer = np.append(True, start[1:] >= reach[:-1])
    names = trace.column("name_id")[rows[outer]]
    first = int(names[0])
    mine = np.flatnonzero(names == first)
    if mine.size < 3:
        return None
    steps = _from_repetition(start[outer][mine], end[outer][mine], trace.names[first], main)
    low, high = _host_extent(trace)
    if steps is None or steps.end - steps.start < 0.5 * (high - low):
        return None
    return steps


def _graph_steps(trace: Trace) -> Steps | None:
    rows = rows_of(trace, Kind.GRAPH_LAUNCH)
    if rows.size < 3:
        return None
    thread = trace.column("thread")[rows]
    main = int(np.bincount(thread).argmax())
    rows = rows[thread == main]
    start, _ = _spans(trace, rows)
    low, high = _host_extent(trace)
    regular = rows.size >= 3 and float(np.std(np.diff(start)) / np.mean(np.diff(start))) < 0.5
    if not regular or start[-1] - start[0] < 0.5 * (high - low):
        return None
    if _inside_one_range(trace, start):
        return None
    return Steps(start, "graph_launch", "graph launch", main)


def _inside_one_range(trace: Trace, at: IntArray) -> bool:
    """Does one annotated range hold several moments? Its graphs are pieces of one step then."""
    begin, end = _spans(trace, rows_of(trace, Kind.ANNOTATION))
    held = np.searchsorted(at, end, side="right") - np.searchsorted(at, begin, side="left")
    return bool((held > 1).any())


def _op_steps(trace: Trace) -> Steps | None:
    """A top-level operator that repeats with the same operators in between."""
    rows = rows_of(trace, Kind.CPU_OP)
    if rows.size < 3:
        return None
    threads = trace.column("thread")[rows]
    main = int(np.bincount(threads).argmax())
    rows = rows[threads == main]
    start, end = _spans(trace, rows)
    reach = np.maximum.accumulate(end)
    outer = np.append(True, start[1:] >= reach[:-1])
    start, names = start[outer], trace.column("name_id")[rows[outer]]
    period = _sequence_period(names)
    if period is None:
        return None
    first = int(names.size % period)
    edges = start[first::period]
    low, high = _host_extent(trace)
    if edges.size < 3 or edges[-1] - edges[0] < 0.5 * (high - low):
        return None
    return Steps(edges, "periodic", "a repeating sequence of operators", main)


def _sequence_period(names: IntArray) -> int | None:
    """The p >= 2 at which the tail of the sequence repeats best, and at 98 % of places or more.

    Candidates are the distances between the last two occurrences of each operator. The layers of a
    model repeat as well, but not over the end of a step; of equally good ones the smallest counts.
    Runs of one operator have every period; they say nothing about steps.
    """
    size = names.size
    if size < 6 or np.unique(names).size < 2:
        return None
    backwards = names[::-1]
    candidates = set()
    for name in np.unique(names):
        last = np.flatnonzero(backwards == name)[:2]
        if last.size == 2:
            candidates.add(int(last[1] - last[0]))
    best: tuple[float, int] | None = None
    for period in sorted(candidates):
        if not 2 <= period <= size // 3:
            continue
        same = names[period:] == names[:-period]
        share = float(same.mean())
        if share >= 0.98 and (best is None or share > best[0]):
            best = share, period
    return best[1] if best else None


_HOST_WORK = (Kind.CPU_OP, Kind.LAUNCH, Kind.GRAPH_LAUNCH, Kind.COPY_CALL)


def _host_extent(trace: Trace) -> tuple[int, int]:
    """From the first to the last work of the host, ns.

    What the device still does then does not count, nor a wait for it: a host that runs ahead has
    issued all steps in a fraction of the recording.
    """
    rows = rows_of(trace, *_HOST_WORK)
    return _extent(trace, rows if rows.size else np.arange(len(trace)))


def _extent(trace: Trace, rows: IntArray) -> tuple[int, int]:
    if rows.size == 0:
        return 0, 0
    start, end = _spans(trace, rows)
    return int(start.min()), int(end.max())


def _whole_trace(trace: Trace) -> Steps:
    low, high = _extent(trace, np.arange(len(trace)))
    return Steps(np.array([low, max(high, low + 1)], dtype=np.int64), "whole_trace")
