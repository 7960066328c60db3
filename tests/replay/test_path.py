"""The critical path against a brute-force longest path, and on steps drawn by hand."""

from __future__ import annotations

from functools import cache

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.analysis import Analysis, AnalysisOptions
from kinetoscope.analysis.path import critical_path_of
from kinetoscope.metrics.critical_path import step_path
from kinetoscope.metrics.intervals import empty
from kinetoscope.replay import Model, timeline
from kinetoscope.replay.path import Piece, critical_path
from kinetoscope.report import phrases
from kinetoscope.result import PathShare
from kinetoscope.testing import TraceBuilder

_LEAST_WAIT = 1500
"""A call that waits takes at least this long, whatever it waits for."""


def _model(calls: list[tuple[int, int, int, int, int, int]]) -> Model:
    """Calls of (segment, cost, duration, stream, delay, waits); one mark before and one after.

    Each call with a duration launches one event. `waits` 0: none; 1: the call waits for the last
    event; 2: its event waits for the last event of another stream.
    """
    size = len(calls) + 2
    segment, cost = np.zeros(size, np.int64), np.zeros(size, np.int64)
    blocks = np.full(size, -1, np.int64)
    owner, stream, duration, delay, depends = [], [], [], [], []
    for k, (work, takes, busy, lane, late, waits) in enumerate(calls, 1):
        segment[k], cost[k] = work, takes
        if waits == 1 and owner:
            blocks[k] = len(owner) - 1
        if busy:
            others = [i for i, other in enumerate(stream) if other != lane]
            depends.append(others[-1] if waits == 2 and others else -1)
            owner.append(k)
            stream.append(lane)
            duration.append(busy)
            delay.append(late)
    start = np.cumsum(segment + cost) - cost
    count = len(owner)
    return Model(
        call_row=np.where((np.arange(size) % (size - 1)) == 0, -1, np.arange(size)),
        call_start=start,
        call_end=start + cost,
        segment=segment,
        segment_overhead=np.zeros(size, np.int64),
        call_cost=cost,
        blocks_on=blocks,
        tail=np.zeros(size, np.int64),
        event_row=np.arange(count),
        first_event=np.searchsorted(np.array(owner, np.int64), np.arange(size + 1)),
        stream=np.array(stream, np.int64),
        duration=np.array(duration, np.int64),
        delay=np.array(delay, np.int64),
        depends_on=np.array(depends, np.int64),
        lag=np.zeros(count, np.int64),
        step=np.zeros(count, np.int64),
        mark=np.array([0, size - 1]),
        initial_free=np.zeros(3, np.int64),
        host_threads=np.array([0]),
        profiler=empty(),
        origin=0,
        recorded_ns=1,
    )


def _longest(model: Model) -> int:
    """Longest path of the dependency graph, by trying all paths."""
    owner = np.repeat(np.arange(model.call_row.size), np.diff(model.first_event))

    @cache
    def starts(k: int) -> int:
        return int(model.segment[k]) + (returns(k - 1) if k else 0)

    @cache
    def returns(k: int) -> int:
        waited = int(model.blocks_on[k])
        if waited < 0:
            return starts(k) + int(model.call_cost[k])
        return max(starts(k) + _LEAST_WAIT, ends(waited))

    @cache
    def ends(i: int) -> int:
        before = [j for j in range(i) if model.stream[j] == model.stream[i]]
        reasons = [starts(int(owner[i])) + int(model.delay[i])]
        reasons += [ends(j) for j in before[-1:]]
        if model.depends_on[i] >= 0:
            reasons.append(ends(int(model.depends_on[i])))
        return max(reasons) + int(model.duration[i])

    return max([returns(model.call_row.size - 1), *(ends(i) for i in range(owner.size))])


_CALLS = st.lists(
    st.tuples(
        st.integers(0, 5_000),
        st.integers(1, 3_000),
        st.sampled_from([0, 1, 800, 9_000]),
        st.integers(0, 2),
        st.integers(0, 700),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=12,
)


@given(_CALLS)
@settings(max_examples=300, deadline=None)
def test_the_path_is_as_long_as_the_longest_path_and_has_no_gap(
    calls: list[tuple[int, int, int, int, int, int]],
) -> None:
    model = _model(calls)
    found = timeline(model)
    path = critical_path(model, found)
    longest = _longest(model)
    assert max(int(found.end.max(initial=0)), int(found.call_end[-1])) == longest
    assert int((path.end - path.start).sum()) == longest
    if path.end.size:
        assert path.end[0] == longest
        assert path.start[-1] == 0
        assert (path.start[:-1] == path.end[1:]).all()


def _steps(kernel_us: float) -> Analysis:
    """Each step of 1,000 us: 500 of Python, a launch, a kernel, a wait for it, 80 of Python."""
    t = TraceBuilder()
    for i in range(6):
        at = i * 1000.0
        t.step(at, 1000)
        t.python("train.py(1): think", at, 500)
        t.kernel("gemm", at + 510, kernel_us, launch_at=at + 500, launch_dur=5, op="aten::mm")
        t.sync(at + 506, kernel_us + 6)
        t.python("train.py(9): log", at + 920, 80)
    return Analysis(t.read())


def test_the_parts_of_the_median_step_sum_to_it() -> None:
    analysis = _steps(400)
    found = step_path(analysis.trace, analysis.activity, analysis.model, timeline(analysis.model))
    assert found is not None
    assert found.step_ns == 1_000_000
    assert sum(part.ns for part in found.parts) == 1_000_000
    parts = {part.name: part.ns for part in found.parts}
    assert parts["aten::mm"] == 400_000
    assert parts["train.py(1): think"] == 500_000
    assert parts["train.py(9): log"] == 80_000
    assert parts["launch latency"] == 10_000


def test_the_result_holds_the_path() -> None:
    unprofiled = AnalysisOptions(real_step_ns=1_000_000)
    path = critical_path_of(Analysis(_steps(400).trace, unprofiled))
    assert path is not None
    assert path.step_ns == 1_000_000
    # All but the kernel, the launch latency of 10 us, and 2 us until the wait for it returns.
    assert path.host_ns == 588_000
    assert path.parts[0] == PathShare("framework", "train.py(1): think", "host", 500_000)
    assert PathShare("compute", "aten::mm", "device", 400_000) in path.parts
    words = phrases.critical_path(path)
    assert words.startswith("host 59 %, device 41 % of 1.00 ms; longest: train.py(1): think 50 %")


def test_what_is_not_on_the_path_is_not_named() -> None:
    """Nobody waits for the kernel, and the host needs longer: the device is off the path."""
    t = TraceBuilder()
    for i in range(6):
        at = i * 1000.0
        t.step(at, 1000)
        t.python("train.py(1): think", at + 10, 980)
        t.kernel("gemm", at + 510, 300, launch_at=at + 500, launch_dur=5)
    analysis = Analysis(t.read())
    found = step_path(analysis.trace, analysis.activity, analysis.model, timeline(analysis.model))
    assert found is not None
    assert "gemm" not in {part.name for part in found.parts}
    assert sum(part.ns for part in found.parts) == found.step_ns == 1_000_000


def test_pieces_have_names() -> None:
    assert {piece.name for piece in Piece} == {"HOST", "DEVICE", "LAUNCH", "HANDOVER"}
