"""Loops, requests and optimizers: what is one, and what doing it in one call gains."""

from __future__ import annotations

import pytest

from kinetoscope.analysis import Analysis, AnalysisOptions
from kinetoscope.metrics.loops import describe, find_loops
from kinetoscope.rules.registry import all_rules
from kinetoscope.testing import TraceBuilder

RULES = {rule.code: rule for rule in all_rules()}


def _loop(
    *names: str, repeats: int = 20, index: bool = True, module: str = "", dims: int = 64
) -> TraceBuilder:
    """Three steps of 10 ms, each with a loop of iterations of 200 us."""
    t = TraceBuilder()
    for step in range(3):
        at = step * 10_000
        t.step(at, 10_000)
        t.python("train.py(5): run", at + 5, 9_900)
        for i in range(repeats):
            begin = at + 20 + 200 * i
            if module:
                t.module(module.format(i), begin, 195)
            for k, name in enumerate(names):
                place = str(i if index else 0)
                shape = [[512, dims], [], []] if name == "select" else [[dims], [dims, dims]]
                t.op(f"aten::{name}", begin + 1 + 30 * k, 25, dims=shape, concrete=["", "0", place])
    return t


def _fires(code: str, t: TraceBuilder) -> bool:
    outcome = RULES[code].run(Analysis(t.read()))
    assert outcome.status != "errored", outcome.reason
    return outcome.status == "fired"


def test_a_loop_is_found_in_each_step_with_its_iterations() -> None:
    trace = _loop("select", "matmul", "softmax").read()
    loops = find_loops(trace)
    assert [(loop.repeats, loop.body) for loop in loops] == [(20, 3)] * 3
    body = describe(trace, loops[0])
    assert (body.names, body.slices, body.cell) == (("select", "matmul", "softmax"), True, False)


def test_layers_are_no_loop() -> None:
    assert not find_loops(_loop("linear", "relu", module="Layer_{}").read())


@pytest.mark.parametrize(
    ("names", "index", "fires"),
    [
        pytest.param(("select", "matmul"), True, True, id="another row each time"),
        pytest.param(("select", "matmul"), False, False, id="the same part each time"),
        pytest.param(("select", "matmul", "tanh"), True, True, id="a recurrence"),
        pytest.param(("select", "matmul", "multinomial"), True, False, id="a rollout"),
        pytest.param(("select", "matmul", "item"), True, False, id="read by the host"),
        pytest.param(("mul", "add"), True, False, id="no part of a tensor"),
    ],
)
def test_what_counts_as_a_loop_over_a_tensor(
    names: tuple[str, ...], index: bool, fires: bool
) -> None:
    assert _fires("FW516", _loop(*names, index=index)) is fires


def test_the_gain_of_a_loop_is_all_but_one_iteration() -> None:
    """20 iterations of 200 us are 4 ms of 10 ms; 3.8 ms go, at best with 0.75 ms of cold caches."""
    t = TraceBuilder(device=None)
    for step in range(3):
        at = step * 10_000
        t.step(at, 10_000)
        for i in range(20):
            begin = at + 20 + 200 * i
            t.op("aten::select", begin, 100, dims=[[512, 64], [], []], concrete=["", "0", str(i)])
            t.op("aten::mul", begin + 100, 100, dims=[[64], [64]])
        t.op("aten::mm", at + 4_020, 5_900, dims=[[64, 64], [64, 64]])
    (hit,) = RULES["FW516"].run(Analysis(t.read())).hits
    assert hit.gain.high == pytest.approx(10_000 / (6_200 - 750), rel=0.02)
    assert next(e.value for e in hit.evidence if e.name == "iterations") == 20


def _requests(samples: int, *, feeds_back: bool = False) -> TraceBuilder:
    t = TraceBuilder()
    for step in range(3):
        at = step * 10_000
        t.step(at, 10_000)
        t.python("serve.py(3): answer", at + 1, 9_900)
        for i in range(30):
            begin = at + 10 + 300 * i
            t.module("Net_0", begin, 250)
            for k in range(3):
                t.op("aten::linear", begin + 5 + 70 * k, 60, dims=[[samples, 256], [256, 256]])
                t.kernel("gemm", begin + 50 + 70 * k, 5, launch_at=begin + 20 + 70 * k)
            if feeds_back:
                t.op("aten::add", begin + 255, 20, dims=[[samples, 256], [samples, 256]])
    return t


@pytest.mark.parametrize(
    ("trace", "fires"),
    [
        pytest.param(_requests(1), True, id="one sample a call"),
        pytest.param(_requests(64), False, id="a batch a call"),
        pytest.param(_requests(1, feeds_back=True), False, id="each answer is the next input"),
    ],
)
def test_requests_one_by_one(trace: TraceBuilder, fires: bool) -> None:
    assert _fires("IN603", trace) is fires


def _optimizer(*ops: str, tensors: int) -> TraceBuilder:
    t = TraceBuilder(device=None)
    for step in range(3):
        at = step * 10_000
        t.step(at, 10_000)
        t.op("aten::mm", at + 5, 5_900, dims=[[64, 64], [64, 64]])
        t.annotation("Optimizer.step#SGD.step", at + 5_950, 4_000)
        for i in range(tensors):
            for k, name in enumerate(ops):
                t.op(f"aten::{name}", at + 5_960 + (i * len(ops) + k) * 20, 18, dims=[[64], [64]])
    return t


@pytest.mark.parametrize(
    ("ops", "tensors", "fires"),
    [
        pytest.param(("mul_", "add_"), 90, True, id="two operators for each of 90 tensors"),
        pytest.param(("mul_", "add_"), 10, False, id="ten tensors"),
        pytest.param(("_foreach_mul_", "_foreach_add_"), 2, False, id="lists of tensors"),
    ],
)
def test_optimizers_that_update_tensor_by_tensor(
    ops: tuple[str, ...], tensors: int, fires: bool
) -> None:
    assert _fires("FW507", _optimizer(*ops, tensors=tensors)) is fires


def test_an_optimizer_of_the_programs_own_is_named() -> None:
    """40 updates of 100 us; what stays is 2.5 us a parameter, of which there are 40."""
    t = TraceBuilder()
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.python("train.py(5): training_step", at + 1, 9_990)
        t.op("aten::mm", at + 5, 100, dims=[[64, 64], [64, 64]])
        t.kernel("gemm", at + 20, 90, launch_at=at + 10)
        t.annotation("Optimizer.step#Lion.step", at + 5_000, 4_100)
        t.python("lion.py(9): update_each", at + 5_010, 4_080)
        for i in range(40):
            begin = at + 5_020 + 100 * i
            t.op("aten::mul_", begin, 90, dims=[[64], []])
            t.kernel("vectorized_elementwise_kernel", begin + 10, 2, launch_at=begin + 3)
    (hit,) = RULES["FW507"].run(Analysis(t.read(), AnalysisOptions(real_step_ns=10_000_000))).hits
    assert [p.function for p in hit.locations[:2]] == ["update_each", "training_step"]
    assert hit.gain.mid == pytest.approx(10 / (10 - 4.1 + 40 * 0.0025), rel=0.01)
    assert "_foreach_" in hit.fix.summary


def _many_steps(*, passes: bool, launches: bool = True) -> TraceBuilder:
    """Twenty optimizer steps of 100 us in each step of 5 ms; `passes`: each after a backward."""
    t = TraceBuilder()
    for step in range(3):
        at, seq = step * 5_000, 1_000 * step
        t.step(at, 5_000)
        for i in range(20):
            begin = at + 1_000 + 200 * i
            if passes or i == 0:
                t.op("aten::addmm", begin - 100, 20, seq=seq + i)
                t.backward("AddmmBackward0", begin - 70, 50, seq=seq + i, tid=t.tid)
            t.annotation("Optimizer.step#Adam.step", begin, 90)
            t.op("aten::_foreach_lerp_", begin + 5, 80)
            t.kernel(
                "multi_tensor_apply_kernel",
                begin + 20,
                5,
                launch_at=begin + 10 if launches else None,
            )
    return t


@pytest.mark.parametrize(
    ("trace", "fires"),
    [
        pytest.param(_many_steps(passes=False), True, id="all after one backward pass"),
        pytest.param(_many_steps(passes=True), False, id="each after one of its own"),
        pytest.param(_many_steps(passes=False, launches=False), True, id="no launch recorded"),
    ],
)
def test_many_updates_of_one_model_are_not_many_optimizers(
    trace: TraceBuilder, fires: bool
) -> None:
    assert _fires("FW507", trace) is fires


def _one_by_one(sizes: list[list[int]]) -> TraceBuilder:
    """Two operators for each of 40 tensors of these sizes, 50 us each, in steps of 3 ms."""
    t = TraceBuilder()
    for step, own in enumerate(sizes):
        t.step(step * 3_000, 3_000)
        for i in range(40):
            for k, name in enumerate(("div_", "sub_")):
                begin = step * 3_000 + 100 + 50 * i + 25 * k
                t.op(f"aten::{name}", begin, 20, dims=[[3, own[i], own[i]], []])
                t.kernel("vectorized_elementwise_kernel", begin + 15, 2, launch_at=begin + 5)
    return t


@pytest.mark.parametrize(("shift", "fires"), [(0, True), (1, False)])
def test_samples_of_many_sizes_are_no_parameters(shift: int, fires: bool) -> None:
    sizes = [[32 + (7 * i + 5 * shift * step) % 40 for i in range(40)] for step in range(4)]
    assert _fires("FW507", _one_by_one(sizes)) is fires


def test_loops_that_come_several_times_a_step_say_how_often() -> None:
    """Two loops of 8 iterations of 100 us a step: 0.8 ms each but for the last gap."""
    t = TraceBuilder()
    for step in range(4):  # the marks begin with the second one: the first step's loops are outside
        at = step * 10_000
        if step:
            t.step(at, 10_000)
        t.python("train.py(5): pairs", at + 5, 9_900)
        for first in (20, 4_000):
            for i in range(8):
                begin = at + first + 100 * i
                t.op("aten::select", begin, 20, dims=[[64, 8], [], []], concrete=["", "0", str(i)])
                t.op("aten::mul", begin + 30, 40, dims=[[8], [8]])
            t.op("aten::stack", at + first + 900, 20)
    hit = RULES["FW516"].run(Analysis(t.read())).hits[0]
    told = {e.name: e.value for e in hit.evidence}
    assert (told["iterations"], told["loops_per_step"]) == (8, 2)
    assert told["loop_time"] == 2 * (7 * 100 + 70) * 1000
    assert "8 iterations of select, mul, 2 times a step, 96.2 µs each" in hit.message
    assert "1.54 ms a step (15 %)" in hit.message
