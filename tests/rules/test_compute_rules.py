"""The rules about kernels: what they count, what they leave alone, and gains by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.attention import written_out_attention
from kinetoscope.metrics.chains import pointwise_chains
from kinetoscope.metrics.device_ops import device_ops
from kinetoscope.rules.api import Hit, Rule
from kinetoscope.rules.registry import all_rules
from kinetoscope.testing import TraceBuilder

RULES = {rule.code: rule for rule in all_rules()}
MINE = (
    "CP201", "CP202", "CP204", "CP206", "CP208", "CP211", "CP212", "CP217", "CP220", "CP222",
    "FW507", "FW508", "FW516", "IN603",
)  # fmt: skip
BF16 = "c10::BFloat16"


def _rule(code: str) -> Rule:
    return RULES[code]


def _hits(code: str, t: TraceBuilder) -> tuple[Hit, ...]:
    outcome = _rule(code).run(Analysis(t.read()))
    assert outcome.status != "errored", outcome.reason
    return outcome.hits


def _value(hit: Hit, name: str) -> float | int | str:
    return next(e.value for e in hit.evidence if e.name == name)


# --- CP201, CP202 --------------------------------------------------------------------------------


def _product(width: int, dur: float, kernel: str, dtype: str = BF16) -> TraceBuilder:
    """8192 x 1024 x `width` in each of four steps of 10 ms, waited for."""
    t = TraceBuilder()
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.op("aten::mm", at + 10, 12, dims=[[8192, 1024], [1024, width]], types=[dtype, dtype],
             strides=[[1024, 1], [1, 1024]])  # fmt: skip
        t.kernel(kernel, at + 30, dur, launch_at=at + 14)
        t.sync(at + 40, dur - 5)
    return t


def test_a_vocabulary_of_50257_is_named_and_its_gain_is_that_of_aligned_products() -> None:
    (hit,) = _hits("CP202", _product(50_257, 8_800, "nvjet_sm90_tst_192x192"))
    assert _value(hit, "dimension") == 50_257
    assert "50304" in hit.fix.summary
    # 2 x 8192 x 1024 x 50304 FLOP at 0.75 of 989.4 TFLOP/s take 1.137 ms instead of 8.8 ms.
    assert hit.gain.mid == pytest.approx(10_000 / (10_000 - 8_800 + 1_137 + 2), rel=0.01)
    assert hit.gain.low < hit.gain.mid < hit.gain.high


@pytest.mark.parametrize(("k", "expected"), [(128, 0.75), (8_192, 0.6)])
def test_products_that_memory_bounds_are_no_measure_of_others(k: int, expected: float) -> None:
    """Beside the one to judge two aligned ones at 0.6 of the peak: k = 128 is bound by memory."""
    t, at_600 = _product(50_257, 8_800, "nvjet_sm90_tst_192x192"), 2 * 8192 * 8192 * k / 593.6e6
    for step in range(4):
        for i in range(2):
            at = step * 10_000 + 100 + 100 * i
            shapes = [[8192, k], [k, 8192]]
            t.op("aten::mm", at, 40, dims=shapes, types=[BF16, BF16], strides=[[k, 1], [1, k]])
            t.kernel(
                "nvjet", step * 10_000 + 8_900 + i * (at_600 + 2), at_600 + 2, launch_at=at + 4
            )
    (hit,) = _hits("CP202", t)
    assert _value(hit, "aligned_rate_of_peak") == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("width", "dur"),
    [
        pytest.param(50_304, 8_800, id="aligned"),
        pytest.param(50_257, 1_350, id="as fast as aligned ones"),
    ],
)
def test_products_without_fault_are_silent(width: int, dur: float) -> None:
    assert not _hits("CP202", _product(width, dur, "nvjet_sm90_tst_192x192"))


def test_float32_on_the_vector_units_and_its_gain() -> None:
    """2 x 8192 x 1024 x 8192 FLOP: 137.4 GFLOP, 0.463 ms at 0.6 of 494.7 TFLOP/s."""
    (hit,) = _hits("CP201", _product(8192, 2_764, "cutlass_80_simt_sgemm_256x128", "float"))
    assert hit.gain.mid == pytest.approx(10_000 / (10_000 - 2_764 + 466), rel=0.01)
    assert "set_float32_matmul_precision" in hit.fix.snippet


def test_autocast_reaches_attention_as_well_and_tf32_does_not() -> None:
    t = _product(8192, 2_764, "cutlass_80_simt_sgemm_256x128", "float")
    q = [8, 1024, 16, 64]
    for step in range(4):
        at = step * 10_000
        t.op("aten::_efficient_attention_forward", at + 24, 12, dims=[q, q, q, [], [], [], []],
             types=["float"] * 3, concrete=[""] * 8 + ["0.", "0"])  # fmt: skip
        t.kernel("fmha_cutlassF_f32_aligned_64x64_rf_sm80", at + 2_800, 2_000, launch_at=at + 28)
        t.sync(at + 2_800, 2_005)
    (hit,) = _hits("CP201", t)
    assert hit.gain.mid == pytest.approx(10_000 / (10_000 - 2_764 + 466), rel=0.01)
    # 137.4 GFLOP at 0.7 of 989.4 TFLOP/s: 198 us, and 3. Attention: 4 x 8 x 16 x 1024^2 x 64 FLOP
    # at 0.35 of that peak: 99 us.
    assert hit.gain.high == pytest.approx(10_000 / (10_000 - 2_764 - 2_000 + 201 + 99), rel=0.02)


def test_the_function_that_autocast_leaves_out_comes_first() -> None:
    """Teacher and student run the same code: the teacher in float32, from another function."""
    t = TraceBuilder()
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.python("train.py(50): train_step", at + 1, 300)
        for begin, caller, dtype, kernel, dur in (
            (2, "train.py(40): soft_targets", "float", "cutlass_80_simt_sgemm_256x128", 2_764),
            (102, None, BF16, "nvjet_sm90_tst_192x192", 200),
        ):
            if caller:
                t.python(caller, at + begin, 90)
            t.python("model.py(20): forward", at + begin + 1, 80)
            shapes = [[8192, 1024], [1024, 8192]]
            strides = [[1024, 1], [1, 1024]]
            t.op("aten::mm", at + begin + 5, 12, dims=shapes, types=[dtype, dtype], strides=strides)
            t.kernel(kernel, at + 300 + begin * 30, dur, launch_at=at + begin + 9)
        t.sync(at + 320, 3_245)
    (hit,) = _hits("CP201", t)
    assert [place.function for place in hit.locations] == ["soft_targets", "forward", "train_step"]
    assert "autocast" in hit.fix.snippet


@pytest.mark.parametrize(("channels_last", "left"), [(True, 0.527), (False, 1.437)])
def test_a_float32_convolution_loses_its_conversions_where_the_matrix_units_need_none(
    channels_last: bool, left: float
) -> None:
    """2 x 16 x 128 x 128 x 128 x 256 x 9 FLOP: 154.6 GFLOP, 0.521 ms at 0.6 of 494.7 TFLOP/s.

    The two conversions, a twelfth of the operator (and so of its work) each, stay for NCHW.
    """
    shapes = [[16, 256, 128, 128], [128, 256, 3, 3]]
    last = [[256 * 128 * 128, 1, 128 * 256, 256], [2304, 1, 768, 256]]
    first = [[256 * 128 * 128, 128 * 128, 128, 1], [2304, 9, 3, 1]]
    none: list[list[int]] = [[]] * 6
    t = TraceBuilder()
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.op("aten::cudnn_convolution", at + 10, 40, dims=shapes + none,
             types=["float", "float", *[""] * 6],
             strides=(last if channels_last else first) + none,
             concrete=["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "False", "True"])  # fmt: skip
        names = ("nhwcToNchwKernel", "sm80_xmma_fprop_f32f32", "nchwToNhwcKernel")
        for i, (begin, dur) in enumerate(((0, 500), (500, 5_000), (5_500, 500))):
            t.kernel(names[i], at + 30 + begin, dur, launch_at=at + 12 + 8 * i)
        t.sync(at + 60, 5_975)
    (hit,) = _hits("CP201", t)
    assert hit.gain.mid == pytest.approx(10 / (4 + left), rel=0.01)


@pytest.mark.parametrize("kernel", ["sm80_xmma_gemm_tf32f32_tf32f32", "nvjet_sm90_sss_128x128"])
def test_float32_on_the_matrix_units_is_silent(kernel: str) -> None:
    assert not _hits("CP201", _product(8192, 2_764, kernel, "float"))


def test_slow_products_behind_a_slow_host_gain_nothing() -> None:
    """The device waits for the host: faster kernels do not make the step shorter."""
    t = TraceBuilder()
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.python("train.py(1): think", at + 100, 9_800)
        t.op("aten::mm", at + 10, 12, dims=[[1024, 1024], [1024, 1024]])
        t.kernel("cutlass_80_simt_sgemm", at + 30, 60, launch_at=at + 14)
    outcome = _rule("CP201").run(Analysis(t.read()))
    assert (outcome.status, outcome.hits) == ("silent", ())


# --- CP206 ---------------------------------------------------------------------------------------

_SCORES = [2, 8, 2048, 2048]
_FORWARD = (
    ("aten::bmm", [[16, 2048, 64], [16, 64, 2048]]),
    ("aten::mul", [_SCORES, []]),
    ("aten::_softmax", [_SCORES, [], []]),
    ("aten::bmm", [[16, 2048, 2048], [16, 2048, 64]]),
)


def _attention(*, backward: bool, head: int = 64) -> TraceBuilder:
    t = TraceBuilder()
    for step in range(4):
        at = step * 20_000
        t.step(at, 20_000)
        for i, (name, dims) in enumerate(_FORWARD):
            shapes = [[head if n == 64 else n for n in d] for d in dims]
            t.op(name, at + 10 + 20 * i, 12, dims=shapes, seq=10 * step + i)
            t.kernel("k", at + 200 + 1_000 * i, 1_000, launch_at=at + 14 + 20 * i)
        for i in range(4) if backward else ():
            begin = at + 200 + 60 * i
            t.backward("SomeBackward0", begin, 40, seq=10 * step + 3 - i)
            t.kernel("k", at + 4_200 + 2_000 * i, 2_000, launch_at=begin + 10, tid=1001)
        t.sync(at + 500, 12_000 if backward else 3_700)
    return t


@pytest.mark.parametrize(("backward", "each"), [(False, 4_000_000), (True, 12_000_000)])
def test_attention_counts_its_backward_pass(backward: bool, each: int) -> None:
    (hit,) = _hits("CP206", _attention(backward=backward))
    assert _value(hit, "attention_time") == each
    assert _value(hit, "scores") == 16 * 2048 * 2048 * 4
    # What remains of a step: 20 ms less the attention, and the fused kernels of some 100 us.
    rest = 20_000 - each / 1000
    assert 20_000 / (rest + 2_000) < hit.gain.mid < 20_000 / rest


def test_a_softmax_between_other_products_is_no_attention() -> None:
    assert not written_out_attention(_attention(backward=False, head=2048).read())


def test_products_of_different_steps_do_not_make_an_attention() -> None:
    t = TraceBuilder()
    for step in range(4):
        at = step * 1_000
        t.step(at, 1_000)
        t.op("aten::_softmax", at + 10, 12, dims=[_SCORES, [], []])
        t.op("aten::bmm", at + 30, 12, dims=[[16, 2048, 64], [16, 64, 2048]])
    assert not written_out_attention(t.read())


def test_attention_on_the_cpu_is_found_too() -> None:
    t = TraceBuilder(device=None)
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        for i, (name, dims) in enumerate(_FORWARD):
            t.op(name, at + 10 + 2_000 * i, 1_900, dims=dims)
    (hit,) = _hits("CP206", t)
    # 7.9 ms of 10 ms, of which 40 % are likely to go.
    assert hit.gain.mid == pytest.approx(10_000 / (10_000 - 0.4 * 7_900), rel=0.05)


# --- CP211, CP212, CP204 -------------------------------------------------------------------------


def _pointwise(types: list[str], dims: list[list[int]]) -> TraceBuilder:
    t = TraceBuilder()
    for step in range(4):
        at = step * 1_000
        t.step(at, 1_000)
        t.op("aten::mul", at + 10, 12, dims=dims, types=types)
        t.kernel("vectorized_elementwise_kernel", at + 30, 800, launch_at=at + 14)
        t.sync(at + 40, 795)
    return t


def test_float64_tensors_count_and_python_scalars_do_not() -> None:
    tensor, scalar = [4096, 4096], []
    (hit,) = _hits("CP211", _pointwise(["double", "double"], [tensor, tensor]))
    assert hit.gain.mid == pytest.approx(1_000 / (1_000 - 400), rel=0.01)
    assert not _hits("CP211", _pointwise(["float", "double"], [tensor, scalar]))


def _double_product(**header: Any) -> TraceBuilder:
    """2 x 4096^3 = 137.4 GFLOP at 55 TFLOP/s, in steps of 2.6 ms that wait for it."""
    t, shape = TraceBuilder().header(**header), [4096, 4096]
    for step in range(4):
        at = step * 2_600
        t.step(at, 2_600)
        t.op("aten::mm", at + 10, 12, dims=[shape, shape], types=["double", "double"])
        t.kernel("sm90_xmma_gemm_f64f64_f64f64_f64_nn_n", at + 30, 2_500, launch_at=at + 14)
        t.sync(at + 40, 2_495)
    return t


def _settings(precision: str) -> dict[str, Any]:
    return {"version": 1, "facts": {"settings": {"float32_matmul_precision": precision}}}


def test_a_float64_product_gains_by_where_float32_ones_run() -> None:
    """In float32: 67 TFLOP/s on the vector units, 494.7 as TF32; nothing is longer than before."""
    (hit,) = _hits("CP211", _double_product())
    # 137.4 GFLOP: half of 67 TFLOP/s is slower than float64's matrix units; the mean of 0.65 x 67
    # and 0.6 x 494.7 is 113.7 TFLOP/s and takes 1209 us; 0.7 x 494.7 takes 397 us. 100 us stay.
    assert hit.gain.low == pytest.approx(1.0, abs=0.01)
    assert hit.gain.mid == pytest.approx(2_600 / (100 + 1_209), rel=0.02)
    assert hit.gain.high == pytest.approx(2_600 / (100 + 397), rel=0.02)
    (hit,) = _hits("CP211", _double_product(kinetoscope=_settings("high")))
    # 0.35 x 494.7: 794 us; 0.6 x 494.7: 463 us.
    assert hit.gain.low == pytest.approx(2_600 / (100 + 794), rel=0.02)
    assert hit.gain.mid == pytest.approx(2_600 / (100 + 463), rel=0.02)
    # 0.65 x 67 TFLOP/s take longer than the 2.5 ms in float64: worth no word.
    assert not _hits("CP211", _double_product(kinetoscope=_settings("highest")))


def test_other_products_of_the_recording_tell_whether_tf32_is_allowed() -> None:
    shape, single = [4096, 4096], "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n"
    for kernel, fires in ((single, False), ("sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n", True)):
        t = _double_product()
        for step in range(4):
            at = step * 2_600
            t.op("aten::mm", at + 24, 12, dims=[shape, shape], types=["float", "float"])
            t.kernel(kernel, at + 2_540, 40, launch_at=at + 26)
        assert bool(_hits("CP211", t)) is fires


@pytest.mark.parametrize(
    ("solver", "at_most"),
    [
        pytest.param("aten::linalg_cholesky_ex", "low", id="a factorisation"),
        pytest.param("aten::_cholesky_solve_helper", "low", id="a solution"),
        pytest.param("aten::linalg_vector_norm", "critical", id="a norm, which is neither"),
    ],
)
@pytest.mark.parametrize("device", [True, False])
def test_float64_that_matrices_are_factorised_in_is_a_choice(
    solver: str, at_most: str, device: bool
) -> None:
    """300 of 900 us in the solver, more than a fifth."""
    t = TraceBuilder()
    for step in range(4):
        at = step * 1_000
        t.step(at, 1_000)
        ops = (solver, 300), ("aten::mul", 600)
        for i, (name, us) in enumerate(ops):
            shape = [[4096, 4096], [4096, 4096]]
            begin, long = (at + 10 + 20 * i, 12) if device else (at + 10 + 300 * i, us)
            t.op(name, begin, long, dims=shape, types=["double", "double"])
            if device:
                t.kernel("a_kernel", at + 60 + 300 * i, us, launch_at=begin + 4)
        if device:
            t.sync(at + 60, 905)
    (hit,) = _hits("CP211", t)
    assert hit.at_most == at_most
    assert (hit.gain.low == 1.0) is (at_most == "low")


def test_an_optimizer_on_lists_of_float64_tensors_counts_by_its_kernels() -> None:
    t = TraceBuilder()
    functor = "multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<{}, 4>>"
    for step in range(4):
        at = step * 1_000
        t.step(at, 1_000)
        t.op("aten::_fused_adamw_", at + 10, 12, dims=[[[1 << 24]]], types=["TensorList"])
        t.kernel(functor.format("double"), at + 30, 800, launch_at=at + 14)
        t.sync(at + 40, 795)
    (hit,) = _hits("CP211", t)
    assert _value(hit, "first_operator") == "_fused_adamw_"
    assert hit.gain.mid == pytest.approx(1_000 / (1_000 - 400), rel=0.01)


def test_a_backward_pass_that_nobody_uses_goes_away() -> None:
    build = next(e.build for e in _rule("CP228").examples if e.fires)
    t = TraceBuilder()
    build(t)
    (hit,) = _hits("CP228", t)
    assert _value(hit, "unused_gradients") == 1
    # From 1,370 us, the end of the used gradient, to 1,970 us: 600 of 3,000 us on the host.
    assert _value(hit, "host_time") == 600_000
    assert hit.gain.mid == pytest.approx(3_000 / 2_400, rel=0.02)
    assert hit.locations[0].function == "train"


@pytest.mark.parametrize(
    ("title", "gone_us"),
    [
        # Filled, scattered and cast in 350 + 5 + 620 us; of the product's 240 us, the 2 x 8,192
        # rows of 1 kB that a lookup reads and writes take 9 us at 0.4 of 4.8 TB/s.
        ("8,192 rows picked by one-hot rows of 16,384 columns", 350 + 5 + 620 + 240 - 9),
        ("one-hot rows that are averaged as well", 240 - 9),
    ],
)
def test_one_hot_products_become_lookups(title: str, gone_us: int) -> None:
    t = TraceBuilder()
    next(e.build for e in _rule("CP229").examples if e.title == title)(t)
    (hit,) = _hits("CP229", t)
    assert _value(hit, "classes") == 16_384
    assert hit.gain.mid == pytest.approx(5_000 / (5_000 - gone_us), rel=0.01)


def test_a_product_of_the_same_size_after_the_lookup_is_none() -> None:
    """Only the first product after the scatter takes the one-hot rows.

    What else takes a matrix of that size may need it: the scatter stays then.
    """
    t = TraceBuilder()
    for step in range(4):
        at = step * 5_000
        t.step(at, 4_990)
        dims, types = [[64, 512], [], [64, 1], []], ["long int", "Scalar", "long int", "Scalar"]
        t.op("aten::scatter_", at + 10, 15, dims=dims, types=types)
        t.kernel("elementwise_kernel", at + 60, 400, launch_at=at + 14)
        for k in range(2):
            t.op("aten::mm", at + 40 + 20 * k, 15, dims=[[64, 512], [512, 512]])
            t.kernel("nvjet", at + 500 + 400 * k, 400, launch_at=at + 44 + 20 * k)
        t.sync(at + 100, 1_210)
    (hit,) = _hits("CP229", t)
    assert _value(hit, "one_hot_time") == 400_000


def test_the_backward_pass_of_a_one_hot_product_adds_rows_up() -> None:
    """Steps of 5 ms: 100 us of scatter, 500 us of product, 700 us of its gradient, 1 ms else."""
    t, engine = TraceBuilder(), "autograd::engine::evaluate_function: "
    for step in range(4):
        at, hot = step * 5_000, [4096, 1024]
        t.step(at, 4_990)
        t.op("aten::mm", at + 2, 7, dims=[[4096, 64], [64, 64]])
        t.kernel("nvjet", at + 200, 1_000, launch_at=at + 4)
        dims, types = [hot, [], [4096, 1], []], ["long int", "Scalar", "long int", "Scalar"]
        t.op("aten::scatter_", at + 10, 15, dims=dims, types=types)
        t.kernel("elementwise_kernel", at + 1_200, 100, launch_at=at + 14)
        t.op("aten::mm", at + 40, 15, seq=step, dims=[hot, [1024, 64]])
        t.kernel("nvjet", at + 1_300, 500, launch_at=at + 44)
        t.op(f"{engine}MmBackward0", at + 80, 60, seq=step)
        t.op("aten::mm", at + 85, 20, dims=[[1024, 4096], [4096, 64]])
        t.kernel("nvjet", at + 1_800, 700, launch_at=at + 90)
        t.sync(at + 150, 2_360)
    (hit,) = _hits("CP229", t)
    assert _value(hit, "one_hot_time") == 1_300_000
    # Looked up in 2.5 us (an empty kernel), added up in 80 us and the traffic's 1 us; launching
    # that adds 80 us to the host, before a step that begins with nothing to do.
    assert hit.gain.mid == pytest.approx(5_000 / (5_000 - 1_300 + 2.5 + 81 + 80), rel=0.01)


def test_the_function_that_calls_what_is_not_trained_comes_first() -> None:
    """Two parts by the same layers; a lambda calls the step. The last 600 us of backward are vain,
    and 100 us before them belong to that part as well."""
    t, engine = TraceBuilder(), "autograd::engine::evaluate_function: "
    for step in range(4):
        at, seq = step * 3_000, 100 * step
        t.step(at, 3_000)
        t.python("train.py(2): <lambda>", at + 2, 2_900)
        t.python("train.py(10): teach", at + 5, 2_800)
        for i, caller in enumerate(("train.py(20): ask", "train.py(30): learn")):
            t.python(caller, at + 10 + 100 * i, 90)
            t.python("layers.py(5): forward", at + 12 + 100 * i, 80)
            for k in range(2):
                t.op("aten::addmm", at + 15 + 100 * i + 35 * k, 30, seq=seq + 2 * i + k,
                     dims=[[512], [64, 512], [512, 512]])  # fmt: skip
        backward = ((3, 400, None), (2, 400, [10, 512]), (1, 100, None), (0, 500, [512, 512]))
        begin = at + 800
        for number, us, shape in backward:
            t.op(f"{engine}AddmmBackward0", begin, 100, seq=seq + number)
            t.kernel("gemm", begin + 30, us, launch_at=begin + 20)
            if shape:
                t.op(f"{engine}torch::autograd::AccumulateGrad", begin + 110, 60)
                t.op("torch::autograd::AccumulateGrad", begin + 112, 50, dims=[shape])
                t.op("aten::detach" if number else "aten::add_", begin + 115, 40, dims=[shape])
            begin += us + 100
        t.annotation("Optimizer.step#SGD.step", at + 2_700, 60)
        t.op("aten::_foreach_add_", at + 2_705, 50, dims=[[[10, 512]]], types=["TensorList"])
        t.kernel("multi_tensor_apply_kernel", at + 2_740, 20, launch_at=at + 2_720)
        t.sync(at + 2_770, 30)
    (hit,) = _hits("CP228", t)
    names = [place.function for place in hit.locations]
    assert names[0] == "ask"
    assert {"forward", "teach"} <= set(names)


def test_unused_gradients_between_used_ones_cost_their_products() -> None:
    """An adapter below a layer of 512 x 512 that is not trained, in steps of 3 ms."""
    t, engine = TraceBuilder(), "autograd::engine::evaluate_function: "
    gradients = (([10, 512], False), ([512, 512], True), ([8, 512], False))
    for step in range(4):
        at = step * 3_000
        t.step(at, 3_000)
        for i, (shape, adds) in enumerate(gradients):
            begin = at + 100 + 300 * i
            t.op(f"{engine}AddmmBackward0", begin, 130, seq=100 * step + 3 - i)
            t.op("aten::mm", begin + 10, 100, dims=[[shape[0], 64], [64, 512]],
                 types=["float", "float"])  # fmt: skip
            t.kernel("gemm", at + 120 + 900 * i, 900, launch_at=begin + 20)
            t.op(f"{engine}torch::autograd::AccumulateGrad", begin + 140, 60)
            t.op("torch::autograd::AccumulateGrad", begin + 142, 50, dims=[shape])
            t.op("aten::add_" if adds else "aten::detach", begin + 150, 30, dims=[shape])
        t.sync(at + 1_000, 1_825)
    (hit,) = _hits("CP228", t)
    assert "no_grad" not in hit.fix.snippet
    # The product of 900 us and, on the host, its 100 us and 50 us of adding up.
    assert _value(hit, "device_time") == 900_000
    assert _value(hit, "host_time") == 150_000
    assert hit.gain.mid == pytest.approx(3_000 / (3_000 - 900), rel=0.02)


def _chain(*names: str, numel: int = 1 << 24, steps: int = 2) -> TraceBuilder:
    t = TraceBuilder()
    small = {"rsqrt": numel // 1024}
    for step in range(steps):
        at = step * 5_000
        t.step(at, 5_000)
        for i, name in enumerate(names):
            t.op(f"aten::{name}", at + 10 + 20 * i, 12, dims=[[small.get(name, numel)], []])
            t.kernel("k", at + 500 + 100 * i, 100, launch_at=at + 14 + 20 * i)
    return t


@pytest.mark.parametrize("name", ["log2", "exp2", "atan2", "nan_to_num", "sqrt_", "erfinv_"])
def test_rarer_pointwise_operators_are_links_of_a_chain(name: str) -> None:
    t = TraceBuilder()
    for step in range(2):
        at = step * 3_000
        t.step(at, 3_000)
        for i, one in enumerate(("mul", name, "add")):
            t.op(f"aten::{one}", at + 10 + 20 * i, 12, dims=[[1 << 24], []])
            t.kernel("k", at + 80 + 900 * i, 900, launch_at=at + 14 + 20 * i)
        t.sync(at + 80, 2_705)
    (hit,) = _hits("CP212", t)
    # Three kernels of 0.9 ms become one of 1.15 times as long.
    assert hit.gain.mid == pytest.approx(3_000 / (3_000 - 2_700 + 1_035), rel=0.03)


def test_chains_of_two_functions_are_two_findings() -> None:
    """Of 10 ms: 5 kernels of 0.6 ms in one function, 3 of 0.4 ms in the other, one product."""
    t, shape = TraceBuilder(), [4096, 4096]
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        begin, issued = at + 100, at + 10
        for function, repeats, dur in (("f", 5, 600), ("g", 3, 400)):
            t.python(f"net.py({10 + repeats}): {function}", issued - 1, 11 * repeats + 2)
            for k in range(repeats):
                name = ("mul", "tanh")[k % 2]
                t.op(f"aten::{name}", issued, 9, dims=[shape, []])
                kernel = "vectorized_elementwise_kernel"
                t.kernel(kernel, begin, dur, launch_at=issued + 3)
                issued, begin = issued + 11, begin + dur
            t.op("aten::mm", issued + 4, 9, dims=[shape, shape])
            t.kernel("sm90_gemm", begin, 2_800, launch_at=issued + 6)
            issued, begin = issued + 20, begin + 2_800
        t.sync(issued + 10, begin - issued - 5)
    hits = _hits("CP212", t)
    assert [hit.locations[0].function for hit in hits] == ["f", "g"]
    assert hits[0].gain.mid == pytest.approx(10_000 / (10_000 - 3_000 + 1.15 * 600), rel=0.02)
    assert hits[1].gain.mid == pytest.approx(10_000 / (10_000 - 1_200 + 1.15 * 400), rel=0.02)


@pytest.mark.parametrize(
    ("names", "lengths"),
    [
        pytest.param(("mul", "add", "tanh"), [3, 3], id="one chain a step"),
        pytest.param(("mul", "add"), [], id="two are no chain"),
        pytest.param(("mul", "add", "mm", "tanh", "exp"), [], id="a product breaks it"),
        pytest.param(("pow", "mean", "rsqrt", "mul"), [4, 4], id="statistics belong to it"),
    ],
)
def test_chains(names: tuple[str, ...], lengths: list[int]) -> None:
    chains = pointwise_chains(device_ops(_chain(*names).read()))
    found = [int((chains.chain == i).sum()) for i in range(chains.count)]
    assert found == lengths


@pytest.mark.parametrize(
    ("second", "left"),
    [
        pytest.param(0, 1.5, id="numbers"),
        pytest.param(8, (2 + 8 / 2) / 3, id="half of the second tensors are read as well"),
    ],
)
def test_other_tensors_that_a_chain_reads_are_read_by_the_fused_kernel(
    second: int, left: float
) -> None:
    """Eight kernels of 500 us are 4 of 5 ms; the fused one takes `left` times the longest."""
    t = TraceBuilder()
    for step in range(4):
        at = step * 5_000
        t.step(at, 5_000)
        for i in range(8):
            other = [1 << 24] if i < second else []
            t.op("aten::add", at + 10 + 20 * i, 12, dims=[[1 << 24], other, []])
            t.kernel("k", at + 500 + 500 * i, 500, launch_at=at + 14 + 20 * i)
        t.op("aten::mm", at + 200, 20, dims=[[64, 64], [64, 64]])
        t.kernel("gemm", at + 4_500, 990, launch_at=at + 205)
        t.sync(at + 240, 4_740)
    (hit,) = _hits("CP212", t)
    assert hit.gain.low == pytest.approx(5 / (5 - 4 + left * 0.5), rel=0.08)


def test_a_long_chain_on_a_slow_host_saves_the_host_almost_all_of_it() -> None:
    """Eight operators of 20 µs, 30 µs of Python between two, 40 µs of other work: 410 µs a step.

    The kernels take 80 µs. Compiled, one operator launches; the other seven and the seven gaps go
    away but for 0.8 operators' worth of guards: 350 µs x (1 - 0.8 / 7) = 310 µs.
    """
    t = TraceBuilder()
    period, names = 410, ("mul", "add", "tanh", "mul", "add", "sigmoid", "mul", "add")
    for step in range(6):
        at = step * period
        t.step(at, period)
        for i, name in enumerate(names):
            begin = at + 20 + 50 * i
            t.op(f"aten::{name}", begin, 20, dims=[[1 << 22], []])
            t.kernel("vectorized_elementwise_kernel", begin + 15, 10, launch_at=begin + 12)
    (hit,) = _hits("CP212", t)
    assert hit.gain.mid == pytest.approx(410 / (410 - 310), rel=0.25)


@pytest.mark.parametrize(
    ("image", "weight", "word", "at_most"),
    [
        ([16, 192, 16_384], [192, 192, 3], "Conv2d", "medium"),
        ([16, 192, 1, 16_384], [192, 192, 1, 3], "Conv2d", "medium"),
        ([16, 192, 128, 128], [192, 192, 3, 3], "channels_last)", "critical"),
        ([16, 192, 25, 25, 25], [192, 192, 3, 3, 3], "channels_last_3d", "critical"),
        ([16, 192, 128, 128], None, "channels_last)", "medium"),
        ([16, 3, 128, 128], [192, 3, 3, 3], "channels_last)", "critical"),
    ],
    ids=["a signal", "a signal inside", "an image", "a volume", "in a graph", "three channels"],
)
def test_what_is_convolved_decides_which_layout_helps(
    image: list[int], weight: list[int] | None, word: str, at_most: str
) -> None:
    t = TraceBuilder()
    for step in range(4):
        at = step * 2_000
        t.step(at, 2_000)
        if weight:
            t.op("aten::cudnn_convolution", at + 10, 40, dims=[image, weight])
        t.kernel("void cudnn::ops::nchwToNhwcKernel", at + 60, 400, launch_at=at + 14)
        t.kernel("sm90_xmma_fprop_implicit_gemm", at + 460, 1_100, launch_at=at + 24)
        t.kernel("void cudnn::ops::nhwcToNchwKernel", at + 1_560, 400, launch_at=at + 34)
        t.sync(at + 60, 1_910)
    (hit,) = _hits("CP208", t)
    assert hit.at_most == at_most
    assert word in hit.fix.snippet
    # 0.85 of the 800 us go, 0.3 where few channels are padded in either layout.
    gone = 800 * (0.3 if image[1] == 3 else 0.85)
    assert hit.gain.mid == pytest.approx(2_000 / (2_000 - gone), rel=0.02)
    certain = at_most == "critical" and image[1] != 3
    assert (hit.gain.low == 1.0) is not certain


@pytest.mark.parametrize(
    ("dur", "gains"),
    [pytest.param(1_312, False, id="at 65 % of the peak"), pytest.param(8_000, True, id="at 11 %")],
)
def test_a_dominant_operator_gains_only_below_the_roofline(dur: float, gains: bool) -> None:
    t = TraceBuilder()
    for step in range(4):
        at = step * (dur + 100)
        t.step(at, dur + 100)
        t.op("aten::mm", at + 10, 12, dims=[[8192, 1024], [1024, 50_304]], types=[BF16, BF16])
        t.kernel("nvjet_sm90_tst", at + 30, dur, launch_at=at + 14)
        t.sync(at + 40, dur - 5)
    (hit,) = _hits("CP204", t)
    assert (hit.gain.mid > 1.05) is gains
    assert hit.at_most == ("medium" if gains else "info")


@pytest.mark.parametrize(
    ("cut", "concrete", "at_most"),
    [
        pytest.param("aten::slice", ["", "1", "0", "20", "1"], "high", id="the first 20"),
        pytest.param("aten::slice", ["", "1", "-20", "9223372036854775807", "1"], "high",
                     id="the last 20"),
        pytest.param("aten::narrow", ["", "1", "0", "20"], "high", id="20 by narrow"),
        pytest.param("aten::slice", ["", "1", "1", "9223372036854775807", "1"], "medium",
                     id="all but the first"),
        pytest.param("aten::cumsum", ["", "1"], "medium", id="all of them"),
    ],
)  # fmt: skip
def test_a_sort_is_a_fault_where_few_are_used(cut: str, concrete: list[str], at_most: str) -> None:
    t, scores = TraceBuilder(), [128, 200_000]
    for step in range(4):
        at = step * 5_000
        t.step(at, 5_000)
        t.op("aten::sort", at + 10, 12, dims=[scores, [], [], []], types=["float", "", "", ""])
        t.kernel("DeviceRadixSortOnesweepKernel", at + 30, 4_900, launch_at=at + 14)
        t.op(cut, at + 24, 4, dims=[scores, []], types=["float", ""], concrete=concrete)
        t.sync(at + 40, 4_900)
    (hit,) = _hits("CP204", t)
    assert hit.at_most == at_most
    # One pass over 102.4 MB at 0.85 of 4.8 TB/s is 25 us; 0.6 of that speed is likely.
    assert hit.gain.mid > 20


# --- all of them ---------------------------------------------------------------------------------


def _bare(t: TraceBuilder) -> TraceBuilder:
    return t.header(deviceProperties=[], record_shapes=None, with_stack=None)


def _no_shapes() -> TraceBuilder:
    t = _bare(TraceBuilder())
    for step in range(3):
        t.step(step * 100, 100)
        at = step * 100
        t.op("aten::mm", at + 1, 20).kernel("gemm", at + 30, 50, launch_at=at + 4)
    return t


def _unlinked() -> TraceBuilder:
    return TraceBuilder().kernel("gemm", 0, 100).kernel("elementwise", 100, 100)


def _host_only() -> TraceBuilder:
    t = TraceBuilder(device=None)
    for i in range(20):
        t.op("aten::mul", i * 10, 9, dims=[[4], [4]])
    return t


@pytest.mark.parametrize("code", MINE)
@pytest.mark.parametrize("make", [_no_shapes, _unlinked, _host_only, TraceBuilder().step])
def test_poor_recordings_are_answered(code: str, make: Callable[..., TraceBuilder]) -> None:
    builder = make(0, 10) if make.__name__ == "step" else make()
    assert _rule(code).run(Analysis(builder.read())).status in ("silent", "skipped", "fired")
