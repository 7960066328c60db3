"""Parents, self time, segments and user frames, on small trees drawn by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.testing import TraceBuilder
from kinetoscope.trace.calltree import enclosing, nearest
from kinetoscope.trace.frames import is_user_file, parse_frame
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import Trace


def _name(trace: Trace, node: int) -> str | None:
    if node < 0:
        return None
    return trace.names[trace.column("name_id")[trace.tree.rows[node]]]


def _node(trace: Trace, name: str) -> int:
    names = [_name(trace, n) for n in range(trace.tree.rows.size)]
    return names.index(name)


def _training_step() -> Trace:
    t = TraceBuilder()
    t.python("train.py(10): main", 0, 100)
    t.python("torch/nn/modules/module.py(1783): _call_impl", 10, 60)
    t.module("Linear_0", 12, 50)
    t.op("aten::linear", 15, 40, seq=7)
    t.op("aten::addmm", 20, 30)
    t.kernel("gemm", 40, 20, launch_at=25)
    t.backward("AddmmBackward0", 70, 20, seq=7)
    return t.read()


def test_parents_follow_containment_on_one_thread() -> None:
    trace = _training_step()
    tree = trace.tree
    chain = [_name(trace, n) for n in tree.ancestors(_node(trace, "aten::addmm"))]
    assert chain == [
        "aten::linear",
        "nn.Module: Linear_0",
        "torch/nn/modules/module.py(1783): _call_impl",
        "train.py(10): main",
    ]


def test_self_time_is_duration_without_direct_children() -> None:
    trace = _training_step()
    assert trace.tree.self_ns[_node(trace, "aten::linear")] == 10_000
    assert trace.tree.self_ns[_node(trace, "train.py(10): main")] == 40_000


def test_user_frame_and_module_of_a_kernel() -> None:
    trace = _training_step()
    kernel = int(np.flatnonzero(trace.column("kind") == Kind.KERNEL)[0])
    node = int(trace.links.node[kernel])
    assert _name(trace, int(trace.tree.user_frame[node])) == "train.py(10): main"
    assert _name(trace, int(trace.tree.module[node])) == "nn.Module: Linear_0"
    op = int(trace.links.op[kernel])
    assert trace.names[trace.column("name_id")[op]] == "aten::addmm"


def test_backward_leads_to_its_forward() -> None:
    trace = _training_step()
    backward = _node(trace, "AddmmBackward0")
    assert _name(trace, int(trace.links.source_node[backward])) == "aten::linear"


def test_an_event_that_crosses_its_predecessor_becomes_nobodys_child() -> None:
    t = TraceBuilder()
    t.python("train.py(10): main", 0, 100)
    t.annotation("crossing", 40, 100)
    t.op("aten::add", 60, 10)
    trace = t.read()
    assert _name(trace, int(trace.tree.parent[_node(trace, "crossing")])) is None
    assert _name(trace, int(trace.tree.parent[_node(trace, "aten::add")])) == "crossing"


def test_step_marks_do_not_cut_frames() -> None:
    t = TraceBuilder()
    t.python("train.py(10): main", 0, 100)
    t.step(40, 100)
    t.op("aten::add", 60, 10)
    trace = t.read()
    node = _node(trace, "aten::add")
    assert _name(trace, int(trace.tree.user_frame[node])) == "train.py(10): main"


def test_segments_name_the_innermost_event() -> None:
    t = TraceBuilder()
    t.op("outer", 0, 100)
    t.op("inner", 20, 30)
    t.op("inner", 60, 0)
    trace = t.read()
    got = [
        (int(s), int(e), trace.names[trace.column("name_id")[r]])
        for s, e, r in zip(
            trace.tree.segments.start,
            trace.tree.segments.end,
            trace.tree.segments.row,
            strict=True,
        )
    ]
    assert got == [
        (0, 20_000, "outer"),
        (20_000, 50_000, "inner"),
        (50_000, 100_000, "outer"),
    ]


_SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), max_size=25)


@given(_SPANS)
def test_parent_is_the_nearest_earlier_event_that_contains(spans: list[tuple[int, int]]) -> None:
    spans = sorted(spans, key=lambda s: (s[0], -s[1]))
    start = np.array([a for a, _ in spans], dtype=np.int64)
    end = start + np.array([d for _, d in spans], dtype=np.int64)
    parent = enclosing(np.zeros(len(spans), dtype=np.int64), start, end)
    for i in range(len(spans)):
        expected = next((j for j in range(i - 1, -1, -1) if end[j] >= end[i]), -1)
        assert parent[i] == expected


@given(_SPANS)
def test_segments_partition_the_covered_time(spans: list[tuple[int, int]]) -> None:
    t = TraceBuilder()
    for a, d in spans:
        t.op("aten::add", a, d)
    segments = t.op("aten::mul", 100, 1).read().tree.segments
    assert np.all(segments.end > segments.start)
    assert np.all(segments.start[1:] >= segments.end[:-1])
    covered = {m for a, d in spans for m in range(a, a + d)} | {100}
    inside = sum(int(e - s) for s, e in zip(segments.start, segments.end, strict=True))
    assert inside <= len(covered) * 1000


def test_nearest_looks_at_the_node_itself_first() -> None:
    parent = np.array([-1, 0, 1, 2])
    flag = np.array([True, False, True, False])
    assert nearest(flag, parent).tolist() == [0, 0, 2, 2]


def test_frames() -> None:
    frame = parse_frame("src\\models\\gpt.py(12): forward")
    assert frame is not None
    assert (frame.file, frame.line, frame.function) == ("src/models/gpt.py", 12, "forward")
    assert parse_frame("<built-in method item of Tensor object at 0x7f>") is None
    assert parse_frame("config.py(0): \x01\x02") is None
    assert is_user_file("train.py")
    assert is_user_file("src/models/gpt.py")
    assert is_user_file("/home/me/project/train.py")
    assert not is_user_file("torch/nn/modules/module.py")
    assert not is_user_file("/usr/lib/python3.11/site-packages/yaml/loader.py")
    assert not is_user_file("threading.py")
    assert not is_user_file("<string>")
