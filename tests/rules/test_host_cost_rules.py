"""Gains of the rules about the host's own costs, against sums done by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kinetoscope.analysis import Analysis, AnalysisOptions
from kinetoscope.rules.api import Hit
from kinetoscope.rules.registry import all_rules
from kinetoscope.testing import TraceBuilder

RULES = {rule.code: rule for rule in all_rules()}
Build = Callable[[TraceBuilder], object]


def hits(code: str, build: Build, *, step_us: float) -> tuple[Hit, ...]:
    """What the rule says when the recorded step is the true one: no overhead is taken off."""
    t = TraceBuilder()
    build(t)
    analysis = Analysis(t.read(), AnalysisOptions(real_step_ns=int(step_us * 1000)))
    outcome = RULES[code].run(analysis)
    assert outcome.error is None
    return outcome.hits


def example(code: str) -> Build:
    return next(e.build for e in RULES[code].examples if e.fires)


def test_loading_of_600_of_2000_us() -> None:
    (hit,) = hits("FW523", example("FW523"), step_us=2_000)
    assert hit.gain.high == pytest.approx(2_000 / 1_400, rel=0.01)
    assert hit.gain.low == pytest.approx(2_000 / 1_580, rel=0.02)  # 70 % of 600 us go


def test_zeros_cost_clearing_and_adding() -> None:
    (hit,) = hits("FW509", example("FW509"), step_us=2_000)
    # zero_grad takes 420 us, twenty additions 20 us each.
    assert hit.gain.high == pytest.approx(2_000 / (2_000 - 420 - 400), rel=0.02)
    assert hit.gain.low >= 2_000 / (2_000 - 0.6 * 420) * 0.98


def test_additions_of_accumulated_gradients_stay() -> None:
    def two_backwards(t: TraceBuilder) -> None:
        for step in range(3):
            at = step * 4_000.0
            t.step(at, 4_000)
            t.annotation("Optimizer.zero_grad#SGD.zero_grad", at + 5, 400)
            for i in range(20):
                t.op("aten::zero_", at + 10 + i * 19, 15)
            for i in range(40):  # two backward passes over twenty parameters
                begin = at + 500 + i * 80
                t.backward("torch::autograd::AccumulateGrad", begin, 60, seq=i, tid=t.tid)
                t.op("aten::add_", begin + 2, 50)

    (hit,) = hits("FW509", two_backwards, step_us=4_000)
    values = {e.name: e.value for e in hit.evidence}
    assert values["additions"] == 20
    assert values["addition_time"] == 20 * 50_000


def test_a_mode_costs_its_python_and_not_the_operators() -> None:
    (hit,) = hits("FW531", example("FW531"), step_us=2_000)
    # Thirty marks of 55 us, 10 us of each are the operator that would run anyway.
    assert {e.name: e.value for e in hit.evidence}["handler_recorded"] == 30 * 45_000
    assert hit.gain.high == pytest.approx(2_000 / (2_000 - 30 * 45), rel=0.02)


def test_hooks_and_what_calls_them() -> None:
    (hit,) = hits("FW522", example("FW522"), step_us=2_000)
    # Twenty hooks of 60 us, and 25 + 60 - 22 - 60 us around each that only calls it.
    assert {e.name: e.value for e in hit.evidence}["removable_recorded"] == 20 * 63_000


def test_a_wrapper_of_a_wrapper_is_removable_but_the_layer_is_not() -> None:
    def wrapped(t: TraceBuilder) -> None:
        for step in range(3):
            at = step * 1_000.0
            t.step(at, 1_000)
            t.python("serve.py(10): answer", at + 2, 996)
            t.module("Model_0", at + 5, 990)
            t.module("Wrap_0", at + 10, 400)
            t.module("Linear_0", at + 110, 200)
            t.op("aten::linear", at + 120, 150)
            t.module("Linear_1", at + 500, 400)
            t.op("aten::linear", at + 510, 350)

    (hit,) = hits("FW522", wrapped, step_us=1_000)
    values = {e.name: e.value for e in hit.evidence}
    assert values["removable_recorded"] == 200_000
    assert (values["hooks"], values["wrappers"], values["empty_modules"]) == (0, 1, 0)


def test_a_full_queue_is_no_problem() -> None:
    (hit,) = hits("FW524", example("FW524"), step_us=6_000)
    assert hit.at_most == "info"
    assert hit.gain.basis == "none"
    assert 500 < {e.name: e.value for e in hit.evidence}["launches_ahead"] <= 1_200


def test_constants_that_block_but_not_the_batch() -> None:
    def steps(t: TraceBuilder) -> None:
        example("FW506")(t)

    (hit,) = hits("FW506", steps, step_us=2_000)
    assert {e.name: e.value for e in hit.evidence}["copies_per_step"] == 15
    # 15 operators of 50 us go; the step has 2,000.
    assert hit.gain.high <= 2_000 / (2_000 - 15 * 50) * 1.02


def test_autocast_in_training_repeats_only_within_a_step() -> None:
    def training(t: TraceBuilder, passes: int) -> None:
        for step in range(3):
            at = step * 2_000.0
            t.step(at, 2_000)
            t.annotation("Optimizer.step#SGD.step", at + 1_900, 50)
            for i in range(8):
                for again in range(passes):
                    begin = at + 10 + i * 230 + again * 110
                    t.module(f"Linear_{i}", begin, 105)
                    t.op("aten::linear", begin + 1, 100, dims=[[4, 512], [1024, 512], [1024]])
                    t.op("aten::to", begin + 5, 60, dims=[[1024, 512]])

    assert not hits("FW525", lambda t: training(t, 1), step_us=2_000)
    (hit,) = hits("FW525", lambda t: training(t, 2), step_us=2_000)
    assert {e.name: e.value for e in hit.evidence}["needless_casts"] == 8


def test_a_scaler_is_told_from_the_programs_own_reads() -> None:
    def own_read(t: TraceBuilder) -> None:
        for step in range(4):
            at = step * 3_000.0
            t.step(at, 3_000)
            t.kernel("gemm", at + 30, 1_400, launch_at=at + 10)
            t.python("train.py(10): log", at + 100, 1_400)
            t.op("aten::item", at + 140, 1_320)
            t.op("aten::_local_scalar_dense", at + 141, 1_318)
            t.copy("DtoH Pinned", 4, at + 1_442, 2, launch_at=at + 145)
            t.sync(at + 150, 1_300)
            t.kernel("adam", at + 1_600, 1_380, launch_at=at + 1_550)

    assert hits("FW503", own_read, step_us=3_000)
    assert not hits("FW527", own_read, step_us=3_000)


def test_a_flood_from_a_library_call_is_none() -> None:
    def one_call(t: TraceBuilder) -> None:
        for step in range(3):
            at = step * 20_000.0
            t.step(at, 20_000)
            t.python("model.py(10): forward", at + 5, 19_990)
            t.op("aten::_cudnn_rnn", at + 10, 19_950)
            for i in range(1_100):
                here = at + 20 + i * 18
                t.kernel("elementwise_kernel", here + 12, 2, launch_at=here + 5)

    assert not hits("FW502", one_call, step_us=20_000)


def test_the_hooks_of_the_capture_are_not_the_programs() -> None:
    """The same 60 us a layer as in the rule's example, spent by `kinetoscope run` itself."""
    t = TraceBuilder()
    for step in range(4):
        at = step * 2_000.0
        t.step(at, 2_000)
        t.python("serve.py(10): answer", at + 2, 1_990)
        for i in range(20):
            begin = at + 10 + i * 95
            t.module(f"Linear_{i}", begin, 87)
            t.python("torch/nn/modules/module.py(1782): _call_impl", begin + 1, 85)
            t.op("aten::linear", begin + 3, 15)
            t.kernel("gemm", begin + 12, 3, launch_at=begin + 6)
            t.python("kinetoscope/capture/modules.py(70): _called", begin + 25, 60)
    (rule,) = [r for r in all_rules() if r.code == "FW522"]
    assert not rule.run(Analysis(t.read())).hits


@pytest.mark.parametrize(
    ("file", "fires"), [("mine.py", True), ("kinetoscope/capture/w.py", False)]
)
def test_the_thread_of_the_capture_is_not_the_programs(file: str, fires: bool) -> None:
    t = TraceBuilder()
    for step in range(4):
        t.step(step * 1_000, 1_000)
        t.python("train.py(3): step", step * 1_000 + 1, 300)
        t.op("aten::mm", step * 1_000 + 10, 50)
    t.python(f"{file}(50): _work", 0, 4_000, tid=2000)
    t.python("threading.py(629): wait", 1, 3_998, tid=2000)
    (rule,) = [r for r in all_rules() if r.code == "PR922"]
    assert bool(rule.run(Analysis(t.read())).hits) == fires


def test_what_the_capture_does_at_a_step_is_no_gap_of_the_program() -> None:
    """640 us of each step are the capture's own, inside of the program's function."""
    t = TraceBuilder(device=None)
    for step in range(5):
        at = step * 2_000.0
        t.step(at, 2_000)
        t.python("train.py(10): step", at + 2, 1_990)
        t.op("aten::mm", at + 5, 1_344)
        t.python("kinetoscope/capture/session.py(105): note", at + 1_350, 640)
    (rule,) = [r for r in all_rules() if r.code == "FW517"]
    assert not rule.run(Analysis(t.read())).hits
