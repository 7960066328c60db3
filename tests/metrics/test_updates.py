"""The update of an optimizer's step is what comes after the closure that it was given."""

from __future__ import annotations

import pytest

from kinetoscope.metrics.updates import update_nodes, update_time
from kinetoscope.testing import TraceBuilder
from kinetoscope.trace.trace import Trace

ENGINE = "autograd::engine::evaluate_function: MulBackward0"


def _step(t: TraceBuilder, at: float, *, thread: int | None, closure: bool) -> None:
    """1 ms: forward at 100 us, backward from 300 to 700 us, the update's operator at 800 us."""
    inner = at + 10 if closure else at + 750
    t.annotation("Optimizer.step#AdamW.step", inner, 990 + at - inner)
    t.op("aten::mm", at + 100, 100)
    t.op(ENGINE, at + 300, 200, tid=thread)
    t.op(ENGINE, at + 500, 200, tid=thread)
    t.op("aten::addcdiv_", at + 800, 50)


def _trace(*, thread: int | None = None, closure: bool = True) -> Trace:
    t = TraceBuilder()
    for step in range(3):
        t.step(step * 1_000, 1_000)
        _step(t, step * 1_000, thread=thread, closure=closure)
    return t.read()


@pytest.mark.parametrize("thread", [None, 77])  # of a CPU, and the engine's own for a device
def test_what_the_closure_runs_is_no_update(thread: int | None) -> None:
    trace = _trace(thread=thread)
    start, end = update_time(trace)
    assert ((start - start[0]) // 1_000).tolist() == [0, 1_000, 2_000]
    assert ((end - start) // 1_000).tolist() == [290, 290, 290]  # 700 to 990 us
    assert _in_updates(trace) == {"Optimizer.step#AdamW.step", "aten::addcdiv_"}


def test_without_a_closure_all_of_the_step_is() -> None:
    trace = _trace(closure=False)
    start, end = update_time(trace)
    assert ((end - start) // 1_000).tolist() == [240, 240, 240]  # 750 to 990 us
    assert _in_updates(trace) == {"Optimizer.step#AdamW.step", "aten::addcdiv_"}


def test_inference_has_no_updates() -> None:
    t = TraceBuilder()
    t.op("aten::mm", 0, 10)
    trace = t.read()
    assert update_time(trace)[0].size == 0
    assert update_nodes(trace).tolist() == [-1] * trace.tree.rows.size


def _in_updates(trace: Trace) -> set[str]:
    tree = trace.tree
    rows = tree.rows[update_nodes(trace) >= 0]
    return {trace.names[i] for i in trace.column("name_id")[rows]}
