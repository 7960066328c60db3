"""The rules about inference: what they take for a weight, a cache, a cold request."""

from __future__ import annotations

import pytest

from kinetoscope.analysis import Analysis, AnalysisOptions
from kinetoscope.rules.api import Hit, Outcome
from kinetoscope.rules.inference._requests import weight_shapes
from kinetoscope.rules.registry import all_rules
from kinetoscope.testing import TraceBuilder
from kinetoscope.trace.torch_frames import serving_step

RULES = {rule.code: rule for rule in all_rules()}


def run(code: str, t: TraceBuilder, *, step_us: float) -> Outcome:
    analysis = Analysis(t.read(), AnalysisOptions(real_step_ns=int(step_us * 1000)))
    outcome = RULES[code].run(analysis)
    assert outcome.error is None
    return outcome


def hit_of_example(code: str, *, step_us: float) -> Hit:
    t = TraceBuilder()
    next(e.build for e in RULES[code].examples if e.fires)(t)
    (hit,) = run(code, t, step_us=step_us).hits
    return hit


def test_a_weight_is_what_layers_take_second_and_never_first() -> None:
    t = TraceBuilder().step(0, 100)
    t.op("aten::linear", 10, 5, dims=[[64, 256], [512, 256], [512]])
    t.op("aten::linear", 20, 5, dims=[[32, 32], [32, 32], [32]])  # square: input or weight?
    t.op("aten::matmul", 30, 5, dims=[[8, 64, 16], [8, 16, 64]])  # both are results
    assert weight_shapes(t.read()) == {(512, 256)}


def test_a_growing_cache_costs_what_is_not_new() -> None:
    hit = hit_of_example("IN605", step_us=1_000)
    values = {e.name: e.value for e in hit.evidence}
    assert values["copy_time"] == pytest.approx(4 * 100_000 * 5 / 6, rel=0.01)  # the first: no
    # Four copies of 100 us become writes of 2 us.
    assert hit.gain.high == pytest.approx(1_000 / (1_000 - 4 * 98), rel=0.05)


def test_training_with_cat_is_no_cache() -> None:
    t = TraceBuilder()
    next(e.build for e in RULES["IN605"].examples if e.fires)(t)
    t.annotation("Optimizer.step#SGD.step", 5_900, 50)
    assert run("IN605", t, step_us=1_000).status == "silent"


def test_convolutions_with_channels_last_or_of_1x1_are_left_alone() -> None:
    hit = hit_of_example("IN607", step_us=10_000)
    # Four convolutions of 2 ms of 10; 40 % of that at best.
    assert hit.gain.high == pytest.approx(10 / (10 - 0.4 * 8), rel=0.02)
    t = TraceBuilder(device=None)
    for step in range(3):
        t.step(step * 10_000, 10_000)
        t.op("aten::conv2d", step * 10_000 + 10, 9_000, dims=[[8, 64, 56, 56], [64, 64, 1, 1]])
    assert run("IN607", t, step_us=10_000).status == "silent"


def test_a_norm_after_a_convolution_with_a_bias_can_go() -> None:
    hit = hit_of_example("IN610", step_us=2_000)
    values = {e.name: e.value for e in hit.evidence}
    assert values["norm_time"] == 4 * 150_000
    assert values["convolutions_with_bias"] == 1.0
    # Four norms of 150 us of 1,960 us of device work.
    assert hit.gain.high == pytest.approx(2_000 / (2_000 - 600), rel=0.03)


def test_instance_norm_is_not_training_mode() -> None:
    t = TraceBuilder()
    for step in range(3):
        t.step(step * 1_000, 1_000)
        t.op("aten::linear", step * 1_000 + 10, 100, dims=[[64, 256], [256, 256]])
        values = ["", "", "", "", "", "True", "0.1", "1e-05", "True"]
        dims = [[4, 64, 8, 8], [64], [64], [], [], [], [], [], []]
        t.op("aten::batch_norm", step * 1_000 + 200, 500, dims=dims, concrete=values)
    assert run("IN611", t, step_us=1_000).status == "silent"


def test_batch_statistics_in_serving_are_an_error() -> None:
    t = TraceBuilder()
    for step in range(3):
        t.step(step * 1_000, 1_000)
        values = ["", "", "", "", "", "True", "0.1", "1e-05", "True"]
        dims = [[4, 64, 8, 8], [64], [64], [64], [64], [], [], [], []]
        t.op("aten::batch_norm", step * 1_000 + 200, 500, dims=dims, concrete=values)
    (hit,) = run("IN611", t, step_us=1_000).hits
    assert hit.keep  # whatever the time that it costs
    assert hit.at_least == "medium"


def test_moved_weights_gain_their_copies() -> None:
    hit = hit_of_example("IN620", step_us=4_000)
    values = {e.name: e.value for e in hit.evidence}
    assert values["weights_per_step"] == 4
    assert values["moved"] == 4 * (4 << 20)
    # Four times 500 us of host time.
    assert hit.gain.high == pytest.approx(4_000 / (4_000 - 2_000), rel=0.03)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785)", (False, True)),
        ("execute_8192_context_9(sq8155sk8430)_generation_37(sq37sk34489)", (True, True)),
        ("execute_context_1(888_788544)_generation_0(0)", (True, False)),
        ("step[DECODE bs=32]", (False, True)),
        ("step[EXTEND bs=1 toks=4096]", (True, False)),
        ("forward", None),
    ],
)
def test_marks_of_servers(name: str, kind: tuple[bool, bool] | None) -> None:
    assert serving_step(name) == kind


@pytest.mark.parametrize(
    ("between", "status"), [("mean", "fired"), ("select", "fired"), ("add", "silent")]
)
def test_a_queue_is_one_unless_the_answer_makes_the_next_input(between: str, status: str) -> None:
    """Layers that torch runs as one operator, and something on their result after each request."""
    t = TraceBuilder()
    for step in range(4):
        at = step * 4_000
        t.step(at, 4_000)
        t.python("serve.py(7): answer", at + 1, 3_990)
        for i in range(8):
            begin = at + 10 + i * 490
            t.module("Encoder_0", begin, 400)
            for k in range(3):
                layer = "aten::_transformer_encoder_layer_fwd"
                t.op(layer, begin + 5 + 100 * k, 90, dims=[[1, 128, 512], [], [], [1536, 512]])
                t.kernel("gemm", begin + 40 + 100 * k, 5, launch_at=begin + 20 + 100 * k)
            t.op(f"aten::{between}", begin + 410, 10, dims=[[1, 128, 512], []])
            t.kernel("reduce_kernel", begin + 425, 3, launch_at=begin + 412)
    assert run("IN603", t, step_us=4_000).status == status


def test_a_written_out_loss_gains_what_the_librarys_does_not_do() -> None:
    """8192 x 48000: log-softmax and its backward take 3 of 10 ms, two products of the program 2."""
    t, shape = TraceBuilder(), [8192, 48_000]
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        names = ("_log_softmax", "mul", "mul", "_log_softmax_backward_data")
        for i, (name, dur) in enumerate(zip(names, (1_500, 1_000, 1_000, 1_500), strict=True)):
            begin = at + 50 + (0, 1_500, 2_500, 3_500)[i]
            t.op(f"aten::{name}", at + 5 + 8 * i, 7, dims=[shape, shape])
            t.kernel("elementwise_kernel", begin, dur, launch_at=at + 6 + 8 * i)
        t.op("aten::mm", at + 40, 5, dims=[[8192, 1024], [1024, 48_000]])
        t.kernel("nvjet_sm90_tst", at + 5_050, 4_940, launch_at=at + 42)
        t.sync(at + 48, 9_945)
    gain = run("CP220", t, step_us=10_000).hits[0].gain
    assert gain.mid == pytest.approx(10 / 8, rel=0.02)
    assert gain.low == pytest.approx(10 / 9, rel=0.02)
    assert gain.high == pytest.approx(10 / (5 + 5 * 0.25), rel=0.02)
