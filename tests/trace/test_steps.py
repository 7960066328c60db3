"""What marks a step, and where it begins and ends."""

from __future__ import annotations

import itertools

import pytest

from kinetoscope.metrics.step_time import step_times
from kinetoscope.testing import TraceBuilder


def test_profiler_steps_give_the_edges() -> None:
    t = TraceBuilder()
    for i in range(3):
        t.step(i * 100, 90)
        t.op("aten::add", i * 100 + 5, 10)
    steps = t.read().steps
    assert steps.source == "profiler_step"
    assert steps.edges.tolist() == [0, 100_000, 200_000, 290_000]


def test_a_repeating_annotation_that_fills_the_trace() -> None:
    t = TraceBuilder()
    for i in range(5):
        t.annotation(f"execute_model_{i}", i * 100, 95)
        t.op("aten::add", i * 100 + 5, 10)
    steps = t.read().steps
    assert (steps.source, steps.count) == ("annotation", 5)


def test_a_host_that_runs_ahead_of_the_device_has_steps() -> None:
    """It issues four steps in 4 ms, and waits for the device for the other 36."""
    t = TraceBuilder()
    for i in range(4):
        at = i * 1_000
        t.kernel("gemm", 50 + i * 10_000, 9_990, launch_at=at + 20, op="aten::mm")
        t.annotation("Optimizer.step#SGD.step", at + 700, 200)
        t.op("aten::_foreach_add_", at + 710, 150)
    t.sync(4_000, 36_050)
    trace = t.read()
    assert (trace.steps.source, trace.steps.count) == ("annotation", 3)
    # The first kernel was launched before the first mark, so two whole steps are left of four.
    assert step_times(trace).device_periods.tolist() == [10_000_000, 10_000_000]


def test_what_repeats_in_a_small_part_of_the_work_is_no_step() -> None:
    t = TraceBuilder()
    for i in range(40):
        t.op("aten::mm", i * 100, 90)
    for i in range(3):
        t.annotation("Optimizer.step#SGD.step", 400 + i * 100, 90)
    assert t.read().steps.source == "whole_trace"


def test_a_device_side_step_mark_is_no_step() -> None:
    t = TraceBuilder()
    t.op("aten::add", 0, 100)
    t.kernel("gemm", 50, 30, launch_at=10)
    t.device_annotation("ProfilerStep#0", 50, 0.017)
    assert t.read().steps.source == "whole_trace"


def test_graph_launches_at_an_even_pace() -> None:
    t = TraceBuilder()
    for i in range(6):
        corr = 100 + i
        t.runtime("cudaGraphLaunch", i * 100, 5, corr=corr)
        t.kernel("gemm", i * 100 + 10, 80, corr=corr)
    steps = t.read().steps
    assert (steps.source, steps.count) == ("graph_launch", 5)


def test_graphs_in_one_annotated_range_are_pieces_of_a_step() -> None:
    t = TraceBuilder()
    t.annotation("execute_context_1", 0, 600)
    for i in range(6):
        t.runtime("cudaGraphLaunch", 5 + i * 100, 5, corr=100 + i)
        t.kernel("gemm", i * 100 + 15, 80, corr=100 + i)
    assert t.read().steps.source == "whole_trace"


def test_a_repeating_sequence_of_operators() -> None:
    t = TraceBuilder()
    for i in range(6):
        for j, name in enumerate(("aten::linear", "aten::relu", "aten::sum")):
            t.op(name, i * 30 + j * 10, 8)
    steps = t.read().steps
    assert (steps.source, steps.count) == ("periodic", 5)


def test_layers_that_repeat_are_no_steps() -> None:
    """Four steps of an embedding, forty layers of five operators, and a head."""
    t = TraceBuilder()
    layer = ["aten::native_layer_norm", "aten::addmm", "aten::gelu", "aten::mm", "aten::add"]
    at = 0
    for _ in range(4):
        for name in ("aten::embedding", *layer * 40, "aten::argmax"):
            t.op(name, at, 8)
            at += 10
    steps = t.read().steps
    assert (steps.source, steps.count) == ("periodic", 3)
    assert set((steps.edges[1:] - steps.edges[:-1]).tolist()) == {202 * 10_000}


def test_device_events_belong_to_the_step_that_launched_them() -> None:
    """The device lags a step behind; the first kernel was launched before the recording."""
    t = TraceBuilder()
    t.kernel("old", 0, 190)
    for i in range(3):
        t.step(i * 20, 20)
        t.kernel("gemm", 190 + i * 200, 200, launch_at=i * 20 + 5)
    times = step_times(t.read())
    assert times.device_periods.tolist() == [200_000, 200_000]
    assert times.host_periods.tolist() == [20_000, 20_000, 20_000]
    assert times.recorded_ns == 200_000
    assert times.orphan_rows.size == 1
    assert times.window == (390_000, 790_000)
    assert times.device_bound


def test_a_warm_up_step_is_not_steady() -> None:
    t = TraceBuilder()
    edges = [0, 500, 600, 700, 800]
    for low, high in itertools.pairwise(edges):
        t.step(low, high - low)
        t.kernel("gemm", low + 20, 30, launch_at=low + 5)
    times = step_times(t.read())
    assert times.steady == (1, 2, 3)
    assert times.recorded_ns == 100_000


def _requests(t: TraceBuilder, tiles: int) -> None:
    """Three requests of 1,000 µs, each with several calls of one module."""
    t.python("serve.py(1): main", 0, 4_000)
    for i in range(3):
        at = 100 + i * 1_000
        t.python("torch/utils/_contextlib.py(120): decorate_context", at, 980)
        t.python("serve.py(9): answer", at + 5, 970)
        for k in range(tiles):
            begin = at + 10 + k * 90
            t.python("nn.Module: Net_0", begin, 80)
            t.op("aten::conv2d", begin + 5, 60)


def test_a_request_is_the_outermost_call_that_repeats() -> None:
    """The model is called ten times inside each request: those calls are parts of it."""
    t = TraceBuilder()
    _requests(t, 10)
    steps = t.read().steps
    assert (steps.source, steps.name, steps.count) == ("annotation", "answer", 3)
    assert steps.edges.tolist() == [100_000, 1_100_000, 2_100_000, 3_080_000]


def test_what_repeats_inside_one_call_of_a_model_is_no_step() -> None:
    t = TraceBuilder()
    t.python("serve.py(1): main", 0, 1_000)
    t.python("nn.Module: Net_0", 5, 990)
    for i in range(6):
        t.python("model.py(3): block", 10 + i * 100, 90)
        t.op("aten::linear", 20 + i * 100, 40)
        t.op("aten::relu", 65 + i * 100, 20)
    assert t.read().steps.name != "block"


def _starved(first: int, number: int) -> TraceBuilder:
    """Steps of 10 ms of work; the workers deliver three batches at a time."""
    t = TraceBuilder()
    at = 0.0
    for i, wait in enumerate((60, 0, 0)):
        t.step(at, wait * 1_000 + 10_000, number=number + i)
        if wait:
            t.loader(at, wait * 1_000, workers=True)
        if first and i == 0:
            t.python("torch/utils/data/dataloader.py(428): _get_iterator", at, 20_000)
        t.kernel("gemm", at + wait * 1_000 + 200, 9_000, launch_at=at + wait * 1_000 + 100)
        at += wait * 1_000 + 10_000
    return t


def test_a_first_step_that_waits_for_slow_workers_is_one_of_them() -> None:
    """(70 + 10 + 10) / 3 ms; without the first step it would be 10 ms."""
    assert step_times(_starved(0, number=5).read()).recorded_ns == pytest.approx(30e6, rel=0.02)


def test_a_first_step_that_starts_the_workers_is_no_steady_step() -> None:
    for trace in (_starved(1, number=5), _starved(0, number=0)):
        assert step_times(trace.read()).recorded_ns == pytest.approx(10e6, rel=0.02)


@pytest.mark.parametrize(
    ("lengths", "least", "pace"),
    [
        # Up to six of one kind the smallest: the median of all is larger in one of 2^n recordings.
        ([20, 50, 21, 52], 20, 35.5),
        ([30, 20], 20, 25),
        # The second of eight: fewer than two of eight coins show heads in 9 of 256 throws, fewer
        # than three in 37, which is more than one in ten.
        ([18, 17, 16, 15, 14, 13, 12, 11], 12, 14.5),
        ([20], 20, 20),
        # A mean stands for what comes back: one step of three takes ten times as long.
        ([10, 100, 10], 40, 40),
    ],
    ids=["two slow of four", "two", "eight", "one", "irregular"],
)
def test_few_steps_that_vary_leave_the_typical_one_open(
    lengths: list[int], least: float, pace: float
) -> None:
    t, at = TraceBuilder(device=None), 0
    for length in lengths:
        t.step(at, length * 1_000)
        t.op("aten::mm", at, length * 1_000)
        at += length * 1_000
    times = step_times(t.read())
    assert times.recorded_ns == pytest.approx(pace * 1e6)
    assert times.low_ratio == pytest.approx(least / pace)
