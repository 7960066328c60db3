"""The flame graph's idle time, with times computed by hand."""

from __future__ import annotations

from kinetoscope.analysis import Analysis
from kinetoscope.testing import TraceBuilder
from kinetoscope.viewdata.flame import flame
from kinetoscope.viewdata.pack import unpack

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def _idle(trace: TraceBuilder) -> dict[tuple[str, ...], tuple[int, int]]:
    """Stack of each piece of idle time -> ns and calls, of one step."""
    graph = flame(Analysis(trace.read()))
    assert graph is not None
    found: dict[tuple[str, ...], tuple[int, int]] = {}
    stack: list[str] = []
    numbers = (unpack(c).tolist() for c in (graph.depth, graph.name, graph.device_ns, graph.calls))
    for depth, number, ns, calls in zip(*numbers, strict=True):
        name = graph.names[number]
        stack = [*stack[:depth], name.text]
        if name.kind.startswith("idle_") and ns:
            found[tuple(stack)] = ns // graph.steps, calls // graph.steps
    return found


def test_a_gap_is_split_by_what_the_host_did_in_it() -> None:
    t = TraceBuilder()
    for at in (0, 1000, 2000, 3000):
        t.step(at, 1000)
        t.python("train.py(20): main", at, 990)
        t.loader(at, 700)
        # 500 us in two turns of one function, 150 us in another; the longest piece is 300 us.
        t.python("data.py(7): load", at, 200).python("data.py(9): join", at + 200, 150)
        t.python("data.py(7): load", at + 350, 300)
        t.kernel("gemm", at + 760, 240, launch_at=at + 700)
    waiting = "idle: waiting for the DataLoader"
    found = _idle(t)
    below_loader = {path[3:]: spent for path, spent in found.items() if path[-1] == waiting}
    assert below_loader == {
        ("data.py(7): load", waiting): (500_000, 1),
        ("data.py(9): join", waiting): (150_000, 1),
        (waiting,): (50_000, 1),
    }
    assert {path[:3] for path in found if path[-1] == waiting} == {
        ("main thread", "train.py(20): main", LOADER)
    }
    assert sum(ns for ns, _ in found.values()) == 760_000


def test_the_time_from_a_launch_to_its_work_stands_under_the_launch() -> None:
    t = TraceBuilder()
    for at in (0, 1000, 2000, 3000):
        t.step(at, 1000)
        t.python("train.py(20): main", at, 1000)
        t.kernel("gemm", at + 500, 500, launch_at=at + 400)
    latency = [path for path in _idle(t) if path[-1] == "idle: launch latency"]
    assert latency == [
        ("main thread", "train.py(20): main", "cudaLaunchKernel", "idle: launch latency")
    ]
