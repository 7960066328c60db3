"""Rules about bytes that need not move and kernels that need not run; gains by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.decomposed import written_out
from kinetoscope.metrics.device_ops import device_ops
from kinetoscope.rules.api import Hit
from kinetoscope.rules.registry import all_rules
from kinetoscope.testing import TraceBuilder

RULES = {rule.code: rule for rule in all_rules()}
BF16 = "c10::BFloat16"


def _hits(code: str, t: TraceBuilder) -> tuple[Hit, ...]:
    outcome = RULES[code].run(Analysis(t.read()))
    assert outcome.status != "errored", outcome.reason
    return outcome.hits


def _value(hit: Hit, name: str) -> float | int | str:
    return next(e.value for e in hit.evidence if e.name == name)


Op = tuple[str, list[Any], list[str] | None, float]


def _sequence(ops: Sequence[Op], *, steps: int = 4) -> TraceBuilder:
    """Operators with one kernel each, back to back, in steps of 10 ms that wait for the device."""
    t = TraceBuilder()
    for step in range(steps):
        at, busy = step * 10_000, 200.0
        t.step(at, 10_000)
        for i, (name, dims, types, dur) in enumerate(ops):
            t.op(f"aten::{name}", at + 10 + 15 * i, 12, dims=dims, types=types)
            t.kernel("some_kernel", at + busy, dur, launch_at=at + 13 + 15 * i)
            busy += dur
        t.sync(at + 20 + 15 * len(ops), busy - 15 * len(ops))
    return t


def _gain(saved_us: float) -> Any:
    return pytest.approx(10_000 / (10_000 - saved_us), rel=0.02)


# --- CP219 ------------------------------------------------------------------------

SHAPE = [8_192, 4_096]


def _norm(types: list[str]) -> list[Op]:
    names = ("pow", "mean", "add", "rsqrt", "mul", "mul")
    return [(name, [SHAPE, []], types, 1_000.0) for name in names]


def test_a_norm_in_six_kernels_becomes_one() -> None:
    (hit,) = _hits("CP219", _sequence(_norm(["float", ""])))
    # 134 MB read and written at 0.85 x 4.8 TB/s: 65.8 us, likely 1.3 times that, not 6 ms.
    assert hit.gain.mid == _gain(6_000 - 1.3 * 65.8)
    assert "rms_norm" in hit.fix.snippet


@pytest.mark.parametrize(
    "names",
    [
        ("mul", "add", "tanh", "mul", "sub", "clamp"),  # a solver's update, no activation
        ("pow", "mean", "sqrt", "sum", "max", "min"),  # a distance, no norm
        ("mul", "neg", "mul", "add", "mul", "add"),  # no halves are swapped
    ],
)
def test_other_chains_are_no_norm_and_no_activation(names: tuple[str, ...]) -> None:
    t = _sequence([(name, [SHAPE, []], None, 1_000.0) for name in names])
    assert not written_out(device_ops(t.read()))


def test_gelu_by_hand_is_recognised() -> None:
    names = ("pow", "mul", "add", "mul", "tanh", "add", "mul", "mul")
    t = _sequence([(name, [SHAPE, []], None, 500.0) for name in names], steps=2)
    assert [group.name for group in written_out(device_ops(t.read()))] == ["GELU", "GELU"]


# --- CP221, MM318 ------------------------------------------------------------------------


def test_casts_there_and_back_go_and_one_way_casts_stay() -> None:
    there: Op = ("copy_", [SHAPE, SHAPE, []], ["float", BF16, ""], 1_000.0)
    back: Op = ("copy_", [SHAPE, SHAPE, []], [BF16, "float", ""], 1_000.0)
    softmax: Op = ("_softmax", [SHAPE, [], []], None, 3_000.0)
    (hit,) = _hits("CP221", _sequence([there, softmax, back]))
    assert _value(hit, "casts_per_step") == 2
    assert hit.gain.mid == _gain(2_000)
    assert not _hits("CP221", _sequence([back, softmax, back]))


def test_casts_far_apart_are_no_pair() -> None:
    there: Op = ("copy_", [SHAPE, SHAPE, []], ["float", BF16, ""], 500.0)
    back: Op = ("copy_", [SHAPE, SHAPE, []], [BF16, "float", ""], 500.0)
    between: list[Op] = [("mul", [SHAPE, []], None, 100.0)] * 20
    assert not _hits("CP221", _sequence([there, *between, back]))


def test_keys_for_eight_heads_are_counted_once() -> None:
    shape, dense = [4, 8, 8, 2_048, 128], [16_777_216, 2_097_152, 262_144, 128, 1]
    expanded = [2_097_152, 262_144, 0, 128, 1]
    t = TraceBuilder()
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.op("aten::copy_", at + 10, 20, dims=[shape, shape, []], strides=[dense, expanded, []])
        t.kernel("elementwise_kernel", at + 30, 4_000, launch_at=at + 14)
        t.sync(at + 40, 4_000)
    (hit,) = _hits("MM318", t)
    assert _value(hit, "times") == 8
    assert hit.gain.mid == _gain(4_000)


# --- MM307, MM310, MM316 ------------------------------------------------------------------------


def _training(adds: int) -> TraceBuilder:
    """50 gradients of zeros, and `adds` additions to gradients, 20 us of host and device each."""
    t = TraceBuilder()
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.annotation("Optimizer.zero_grad#SGD.zero_grad", at + 5, 1_010)
        for i in range(50):
            t.op("aten::zero_", at + 10 + 20 * i, 20, dims=[[256, 256]])
            t.kernel("FillFunctor", at + 20 + 20 * i, 2, launch_at=at + 14 + 20 * i)
        for i in range(adds):
            begin = at + 1_100 + 20 * i
            t.backward("torch::autograd::AccumulateGrad", begin, 20, seq=i)
            t.op("aten::add_", begin, 20, dims=[[256, 256], [256, 256], []], tid=1001)
            t.kernel("add", begin + 10, 2, launch_at=begin + 4, tid=1001)
        t.op("aten::mm", at + 9_000, 20, dims=[[256, 256], [256, 256]])
        t.kernel("gemm", at + 9_010, 900, launch_at=at + 9_004)
        t.sync(at + 9_030, 900)
    return t


def test_zeroing_costs_the_host_one_millisecond_a_step() -> None:
    (hit,) = _hits("MM307", _training(0))
    assert _value(hit, "operators_per_step") == 50
    assert _value(hit, "host_time") == 1_000_000
    assert hit.gain.low >= 1.0
    assert 1.0 < hit.gain.mid <= 10_000 / 9_000 * 1.05


def test_the_first_addition_to_each_gradient_goes_too() -> None:
    alone, both = _hits("MM307", _training(0))[0], _hits("MM307", _training(50))[0]
    assert _value(both, "adding_on_host") == 1_000_000
    assert both.gain.mid >= alone.gain.mid


def test_zeros_of_zero_grad_are_not_counted_twice() -> None:
    assert not _hits("MM310", _training(0))


def test_gradients_of_slices_are_named() -> None:
    t = TraceBuilder()
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.op("aten::slice", at + 10, 5, dims=[SHAPE, [], [], [], []], seq=3)
        t.backward("SliceBackward0", at + 30, 60, seq=3)
        t.op("aten::slice_backward", at + 32, 50, dims=[SHAPE], tid=1001)
        t.op("aten::zero_", at + 40, 20, dims=[SHAPE], tid=1001)
        t.kernel("FillFunctor", at + 60, 5_000, launch_at=at + 45, tid=1001)
        t.sync(at + 100, 4_970)
    (hit,) = _hits("MM310", t)
    assert _value(hit, "in_gradients_of_slices") == 1.0
    assert "chunk" in hit.fix.snippet
    assert hit.gain.mid == _gain(3_500)


def test_a_growing_cache_is_no_shifted_window() -> None:
    t = TraceBuilder()
    for step in range(12):
        at, n = step * 10_000, 1_000 + step
        t.step(at, 10_000)
        t.op(
            "aten::cat", at + 10, 16, dims=[[[8, 32, n, 64], [8, 32, 1, 64]], []],
            types=["TensorList", "Scalar"], concrete=["", "2"],
            strides=[[[n * 2_048, n * 64, 64, 1], [2_048, 64, 64, 1]], []],
        )  # fmt: skip
        t.kernel("CatArrayBatchedCopy", at + 30, 5_000, launch_at=at + 14)
        t.sync(at + 40, 5_000)
    (hit,) = _hits("MM316", t)
    assert hit.gain.high == pytest.approx(2.0, rel=0.03)
    assert not _hits("MM309", t)


# --- MM317, MM313, MM304, CP218 ---------------------------------------------------------------


def test_a_tied_table_needs_its_dense_gradient() -> None:
    build = next(e.build for e in RULES["MM317"].examples if e.fires)
    t = TraceBuilder()
    build(t)
    assert _hits("MM317", t)
    for step in range(4):
        at = step * 8_000
        t.op("aten::mm", at + 20, 8, dims=[[8_192, 128], [128, 10_000_000]])
        t.kernel("gemm", at + 7_000, 100, launch_at=at + 22)
    assert not _hits("MM317", t)


def test_the_first_copy_of_what_grows_in_each_request_counts() -> None:
    """A cache of 1000 that each request of 5 ms makes longer four times, in 1 ms each."""
    t = TraceBuilder()
    for step in range(4):
        at = step * 5_000
        t.step(at, 5_000)
        for i in range(4):
            cache, new = [8, 32, 1_000 + i, 64], [8, 32, 1, 64]
            t.op("aten::cat", at + 10 + 20 * i, 16, dims=[[cache, new], []],
                 types=["TensorList", "Scalar"], concrete=["", "2"])  # fmt: skip
            t.kernel("CatArrayBatchedCopy", at + 100 + 1_000 * i, 1_000,
                     launch_at=at + 14 + 20 * i)  # fmt: skip
            t.op("aten::mul", at + 27 + 20 * i, 2, dims=[[8, 32, 1_001 + i, 64], []])
        t.sync(at + 100, 4_010)
    (hit,) = _hits("MM316", t)
    assert _value(hit, "copies_per_step") == 4.0
    # A thousandth of 4 ms stays, and 1 us for each.
    assert hit.gain.high == pytest.approx(5_000 / (1_000 + 4 + 4), rel=0.03)


def _offloading() -> TraceBuilder:
    """Steps of 3 ms, 1 ms of them in the hook of each pass, which copies 64 MiB in 400 us."""
    t = TraceBuilder()
    for step in range(4):
        at = step * 3_000
        t.step(at, 3_000)
        hooks = ("pack_to_cpu", "DtoH", 1), ("unpack_from_cpu", "HtoD", 1_101)
        for name, way, begin in hooks:
            t.python(f"torch/autograd/graph.py(280): {name}", at + begin, 1_000)
            t.copy(f"{way} Pinned", 64 << 20, at + begin + 20, 400, launch_at=at + begin + 10)
        t.kernel("gemm", at + 1_050, 50, launch_at=at + 1_020)
    return t


def test_what_would_fit_need_not_be_moved_at_all() -> None:
    (hit,) = _hits("MM319", _offloading())
    assert "without save_on_cpu" in hit.fix.snippet
    # Of the 2 ms in the hooks 0.8 are likely to go, at best all; at worst nothing does.
    assert hit.gain.low == pytest.approx(1.0, abs=0.01)
    assert hit.gain.mid == pytest.approx(3_000 / (3_000 - 1_600), rel=0.02)
    assert hit.gain.high == pytest.approx(3_000 / (3_000 - 2_000), rel=0.02)


@pytest.mark.parametrize("why", ["a small device", "a full device"])
def test_what_may_not_fit_is_moved_less(why: str) -> None:
    t = _offloading()
    if why == "a small device":
        entry = {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 512 << 20}
        t.header(deviceProperties=[entry])
    else:
        for step in range(4):
            t.memory(1 << 20, 130 << 30, step * 3_000 + 5, reserved=132 << 30)
    # Hidden or avoided copies would not help a host that packs for two thirds of the step.
    outcome = RULES["MM319"].run(Analysis(t.read()))
    assert (outcome.status, outcome.hits) == ("silent", ())
    assert "64.0 MiB" in outcome.withheld


def _twice_looked_up(update: str) -> TraceBuilder:
    """Steps of 8 ms: a table of 10 million x 64 looked up twice, all of it filled, added, applied.

    1 + 1 ms for the gradients, 2 ms to add them, 2 ms to apply them; 2 ms stay.
    """
    t, table = TraceBuilder(), [10_000_000, 64]
    for step in range(4):
        at = step * 8_000
        t.step(at, 8_000)
        for i in range(2):
            seq = 2 * step + i
            t.op("aten::embedding", at + 10 + 10 * i, 8, dims=[table, [4_096]], seq=seq)
        for i in range(2):
            begin = at + 40 + 60 * i
            t.backward("EmbeddingBackward0", begin, 55, seq=2 * step + 1 - i)
            t.op("aten::embedding_dense_backward", begin + 2, 38, tid=1001,
                 dims=[[4_096, 64], [4_096], [], [], []],
                 types=["float", "long int", "Scalar", "Scalar", "Scalar"],
                 concrete=["", "", "10000000", "-1", "False"])  # fmt: skip
            t.kernel("fill", at + 200 + 1_000 * i, 900, launch_at=begin + 5, tid=1001)
            t.kernel("grad", at + 1_100 + 1_000 * i, 100, launch_at=begin + 15, tid=1001)
            if i:
                t.op("aten::add_", begin + 42, 12, dims=[table, table, []], tid=1001)
                t.kernel("add", at + 2_200, 2_000, launch_at=begin + 44, tid=1001)
        t.annotation("Optimizer.step#SGD.step", at + 180, 60)
        t.op(update, at + 185, 12, dims=[table, table, []])
        t.kernel("add", at + 4_200, 2_000, launch_at=at + 190)
        t.sync(at + 250, 5_955)
    return t


def test_a_table_that_is_looked_up_twice_adds_two_dense_gradients() -> None:
    (hit,) = _hits("MM317", _twice_looked_up("aten::add_"))
    assert (_value(hit, "backward_time"), _value(hit, "table_update_time")) == (4e6, 2e6)
    # A fifth of the embedding's 2 ms stays, a tenth of the 4 ms of adding and applying; the step
    # takes 0.2 ms before and 1.8 ms after them.
    assert hit.gain.mid == pytest.approx(8_000 / (2_000 + 400 + 400), rel=0.03)
    assert hit.gain.low == pytest.approx(8_000 / (2_000 + 1_000 + 1_600), rel=0.03)
    assert "optim.SGD" in hit.fix.snippet


def test_the_dense_gradient_of_a_bag_is_one_as_well() -> None:
    """Steps of 5 ms: 4096 bags of 131,072 rows out of 10 million; 2 ms for the gradient, 1.5 more
    to apply it."""
    t, table = TraceBuilder(), [10_000_000, 64]
    for step in range(4):
        at = step * 5_000
        t.step(at, 5_000)
        t.op("aten::_embedding_bag", at + 10, 8, dims=[table, [131_072], [4_096]], seq=step)
        t.backward("EmbeddingBagBackward0", at + 30, 60, seq=step)
        t.op("aten::_embedding_bag_dense_backward", at + 32, 50, tid=1001,
             dims=[[4_096, 64], [131_072], [131_072], [4_096], [4_096], [], [], [], [], []],
             types=["float", *["long int"] * 4, *["Scalar"] * 3, "", "Scalar"],
             concrete=["", "", "", "", "", "10000000", "False", "0", "", "-1"])  # fmt: skip
        t.kernel("fill", at + 100, 1_800, launch_at=at + 35, tid=1001)
        t.kernel("grad", at + 1_900, 200, launch_at=at + 50, tid=1001)
        t.annotation("Optimizer.step#SGD.step", at + 100, 60)
        t.op("aten::add_", at + 105, 12, dims=[table, table, []])
        t.kernel("add", at + 2_100, 1_500, launch_at=at + 110)
        t.sync(at + 170, 3_435)
    (hit,) = _hits("MM317", t)
    assert _value(hit, "rows_looked_up") == 131_072
    assert "EmbeddingBag(10000000, 64" in hit.fix.snippet
    # 0.2 of 2 ms and 0.1 of 1.5 ms stay.
    assert hit.gain.mid == pytest.approx(5_000 / (1_500 + 400 + 150), rel=0.03)


def test_an_update_with_moments_needs_sorted_rows() -> None:
    (hit,) = _hits("MM317", _twice_looked_up("aten::addcdiv_"))
    # Coalescing takes the host 0.2 ms more.
    assert hit.gain.mid == pytest.approx(8_000 / (2_000 + 800 + 200), rel=0.04)
    assert "SparseAdam" in hit.fix.snippet


def test_a_bias_is_free_in_evaluation() -> None:
    build = next(e.build for e in RULES["CP218"].examples if e.fires)
    t = TraceBuilder()
    build(t)
    (hit,) = _hits("CP218", t)
    # 60 us of adding the bias in a step of 2 ms.
    assert _value(hit, "bias_time") == 60_000
    for event in t.to_dict()["traceEvents"]:
        if event["name"] == "aten::batch_norm":
            event["args"]["Concrete Inputs"][5] = "False"
    assert not _hits("CP218", t)


def test_independent_products_are_those_that_are_joined() -> None:
    build = next(e.build for e in RULES["CP214"].examples if e.fires)
    t = TraceBuilder()
    build(t)
    (hit,) = _hits("CP214", t)
    assert _value(hit, "products_in_a_row") == 40
    # 39 of 40 iterations of 50 us go, of a step of 4 ms.
    assert hit.gain.mid == pytest.approx(4_000 / (4_000 - 39 * 50), rel=0.25)


@pytest.mark.parametrize(("module", "advice"), [("Linear_{}", "Stack"), ("Linear_0", "join")])
def test_one_layer_called_again_needs_its_inputs_joined(module: str, advice: str) -> None:
    t = TraceBuilder()
    for step in range(4):
        at = step * 4_000
        t.step(at, 3_990)
        for i in range(40):
            begin = at + 10 + 50 * i
            t.module(module.format(i), begin, 45)
            t.op("aten::linear", begin + 2, 40, dims=[[64, 128], [128, 128], [128]])
            t.kernel("gemm", begin + 30, 4, launch_at=begin + 20)
        parts: list[list[int]] = [[], []]
        t.op("aten::stack", at + 2_020, 60, dims=parts, types=["TensorList", "Scalar"])
        t.sync(at + 2_100, 30)
    (hit,) = _hits("CP214", t)
    assert advice in hit.fix.summary


def test_without_layout_copies_the_operands_of_one_addition_agree() -> None:
    """Steps of 2 ms: 400 µs of copies go, and 640 µs of addition become 403 MB at 3.12 TB/s."""
    t = TraceBuilder(device="NVIDIA H200")
    next(e for e in RULES["CP222"].examples if "channels-last" in e.title).build(t)
    (hit,) = _hits("CP222", t)
    assert _value(hit, "copy_time") == 400_000
    assert _value(hit, "time_with_operands_in_both_formats") == 640_000
    assert hit.gain is not None
    agreed = 3 * 64 * 256 * 64 * 64 * 2 / (0.65 * 4_800)
    assert hit.gain.high == pytest.approx(2_000 / (2_000 - 400 - 640 + agreed / 1_000), rel=0.03)
    assert hit.gain.low < 2_000 / (2_000 - 400)


def test_batch_norms_become_faster_in_the_format_that_no_copy_undoes() -> None:
    """Steps of 1.4 ms: 400 us of copies, and 0.8 ms of norm in channels-first order, both ways."""
    shape, half = [64, 256, 64, 64], "c10::BFloat16"
    last, first = [1_048_576, 1, 16_384, 256], [1_048_576, 4_096, 64, 1]
    t = TraceBuilder(device="NVIDIA H200")
    for step in range(4):
        at = step * 1_400
        t.step(at, 1_400)
        t.op("aten::contiguous", at + 10, 30, dims=[shape, []], strides=[last, []])
        t.op("aten::copy_", at + 14, 20, dims=[shape, shape, []], strides=[first, last, []],
             types=[half, half])  # fmt: skip
        t.kernel("elementwise_kernel", at + 100, 400, launch_at=at + 18)
        t.op("aten::native_batch_norm", at + 50, 30, dims=[shape, [256], [256]],
             strides=[first, [1], [1]], types=[half, half, half],
             concrete=["", "", "", "", "", "True"])  # fmt: skip
        t.kernel("batch_norm_transform_input_kernel", at + 500, 800, launch_at=at + 55)
        t.sync(at + 90, 1_215)
    (hit,) = _hits("CP222", t)
    # 134 MB are read for the statistics, read again and written: 99 us at 0.85 of 4.8 TB/s, and
    # 2.2 times that in practice.
    norm = 2.2 * 3 * 64 * 256 * 64 * 64 * 2 / (0.85 * 4_800) / 1_000
    assert hit.gain.high == pytest.approx(1_400 / (200 + norm), rel=0.05)
    assert hit.gain.mid == pytest.approx(1_400 / (200 + 80 + 800 - 0.8 * (800 - norm)), rel=0.05)
    assert hit.gain.low == pytest.approx(1_400 / (1_400 - 200), rel=0.03)  # half of the copies
