"""Which operator's cost a kernel gets, and what its name says about the arithmetic."""

from __future__ import annotations

import pytest

from kinetoscope.metrics import cost
from kinetoscope.metrics.cost import KernelCosts, kernel_costs
from kinetoscope.metrics.precision import Dtype, Math, list_element, math_of, unit
from kinetoscope.testing import TraceBuilder
from kinetoscope.trace.trace import Trace

_MM = [[64, 32], [32, 16]]
_AT = "at::native::(anonymous namespace)::"
_FLOP = 2 * 64 * 32 * 16
_BYTES = 4 * (64 * 32 + 32 * 16 + 64 * 16)


def _costs(builder: TraceBuilder) -> tuple[Trace, KernelCosts]:
    trace = builder.read()
    return trace, kernel_costs(trace)


def _owner(trace: Trace, costs: KernelCosts, kernel: int) -> str:
    row = costs.op_row[kernel]
    return trace.names[trace.column("name_id")[row]] if row >= 0 else ""


def test_a_product_inside_composites_counts_once() -> None:
    t = TraceBuilder()
    t.op("aten::linear", 0, 90, dims=[[64, 32], [16, 32], [16]])
    t.op("aten::addmm", 10, 50, dims=[[16], *_MM])
    t.kernel("ampere_sgemm_128x64_tn", 100, 40, launch_at=20)
    trace, costs = _costs(t)
    assert _owner(trace, costs, 0) == "aten::addmm"
    assert costs.flop.tolist() == [_FLOP + 64 * 16]
    assert costs.bytes.tolist() == [_BYTES + 64]
    assert (costs.m[0], costs.n[0], costs.k[0], costs.batch[0]) == (64, 16, 32, 1)


def test_a_composite_counts_when_nothing_inside_it_does() -> None:
    t = TraceBuilder()
    t.op("aten::linear", 0, 90, dims=[[64, 32], [16, 32], []])
    t.kernel("my_gemm", 100, 40, launch_at=20)
    trace, costs = _costs(t)
    assert _owner(trace, costs, 0) == "aten::linear"
    assert costs.flop.tolist() == [_FLOP]


def test_a_composite_is_not_charged_to_a_kernel_beside_the_product() -> None:
    t = TraceBuilder()
    t.op("aten::linear", 0, 90, dims=[[64, 32], [16, 32], [16]])
    t.op("aten::mm", 10, 30, dims=_MM)
    t.kernel("gemm", 100, 40, launch_at=20)
    t.kernel("bias_kernel", 150, 10, launch_at=60)
    trace, costs = _costs(t)
    assert [_owner(trace, costs, i) for i in range(2)] == ["aten::mm", ""]
    assert costs.flop.tolist() == [_FLOP, -1]
    assert costs.bytes.tolist() == [_BYTES, -1]


def test_an_unlisted_inner_operator_leaves_the_kernel_to_the_outer_one() -> None:
    t = TraceBuilder()
    t.op("aten::mm", 0, 90, dims=_MM)
    t.op("vendor::split_k_helper", 10, 50)
    t.kernel("gemm", 100, 40, launch_at=20)
    trace, costs = _costs(t)
    assert _owner(trace, costs, 0) == "aten::mm"


def test_several_kernels_share_a_cost_by_their_length() -> None:
    t = TraceBuilder().op("aten::mm", 0, 90, dims=_MM)
    t.kernel("gemm_splitK", 100, 30, launch_at=20).kernel("splitKreduce", 130, 10, launch_at=40)
    _, costs = _costs(t)
    assert costs.share.tolist() == [0.75, 0.25]
    assert costs.flop.tolist() == [0.75 * _FLOP, 0.25 * _FLOP]
    assert costs.bytes.sum() == _BYTES


def test_kernels_without_length_share_equally() -> None:
    t = TraceBuilder().op("aten::mm", 0, 90, dims=_MM)
    t.kernel("a_gemm", 100, 0, launch_at=20).kernel("b_gemm", 130, 0, launch_at=40)
    assert _costs(t)[1].share.tolist() == [0.5, 0.5]


def test_unknown_is_minus_one_everywhere() -> None:
    t = TraceBuilder()
    t.kernel("launched_before_the_window", 0, 10)
    t.op("aten::mm", 20, 30).kernel("gemm_without_shapes", 60, 10, launch_at=25)
    t.op("my::op", 80, 30, dims=[[4]]).kernel("custom", 120, 10, launch_at=85)
    _, costs = _costs(t)
    assert costs.flop.tolist() == [-1, -1, -1]
    assert costs.bytes.tolist() == [-1, -1, -1]
    assert costs.dtype.tolist() == [Dtype.UNKNOWN] * 3
    assert costs.m.tolist() == [-1, -1, -1]
    assert not costs.known.any()


def test_a_replayed_graph_says_nothing_about_its_kernels() -> None:
    t = TraceBuilder().op("aten::mm", 0, 90, dims=_MM)
    t.kernel("gemm", 100, 40, launch_at=20, launch="cudaGraphLaunch")
    assert _costs(t)[1].op_row.tolist() == [-1]


def test_the_shape_of_a_sparse_matrix_is_no_measure_of_its_work() -> None:
    t = TraceBuilder().op("aten::addmm", 0, 50, dims=[[16], *_MM])
    t.kernel("void cusparse::csrmm_alg2_kernel<false, int, float>", 100, 40, launch_at=20)
    costs = _costs(t)[1]
    assert (costs.flop.tolist(), costs.bytes.tolist()) == ([-1], [-1])


@pytest.mark.parametrize(
    ("kernel", "grid", "elements"),
    [
        ("void at::native::vectorized_gather_kernel<16, long>(char*)", (5_000, 1, 1), 5_000 * 64),
        ("void at::native::index_elementwise_kernel<128, 4, F>(long)", (100, 1, 1), 100 * 512),
        ("some_other_kernel", (100, 1, 1), -1),
    ],
)
def test_lookups_are_counted_by_the_grid(
    kernel: str, grid: tuple[int, int, int], elements: int
) -> None:
    """The indices of `x[i]` are recorded without shapes."""
    t = TraceBuilder().op("aten::index", 0, 50, dims=[[1_000, 64], []], types=["float", ""])
    t.kernel(kernel, 100, 40, launch_at=20, grid=grid)
    costs = _costs(t)[1]
    # An index of 8 bytes a row of 64; each element of 4 bytes is read and written.
    expected = 8 * elements // 64 + 8 * elements if elements > 0 else -1
    assert costs.bytes.tolist() == [expected]


def test_a_trace_without_kernels() -> None:
    _, costs = _costs(TraceBuilder().op("aten::mm", 0, 90, dims=_MM))
    assert costs.rows.size == costs.flop.size == costs.m.size == costs.math.size == 0


def test_the_same_shapes_in_other_types_are_told_apart() -> None:
    t = TraceBuilder()
    for i, kind in enumerate(("float", "c10::BFloat16", "float")):
        t.op("aten::mm", 100 * i, 50, dims=_MM, types=[kind, kind])
        t.kernel("gemm", 100 * i + 60, 30, launch_at=100 * i + 10)
    _, costs = _costs(t)
    assert costs.bytes.tolist() == [_BYTES, _BYTES / 2, _BYTES]
    assert costs.dtype.tolist() == [Dtype.FP32, Dtype.BF16, Dtype.FP32]
    assert costs.math.tolist() == [Math.FP32, Math.BF16, Math.FP32]


def test_lists_take_their_type_from_the_kernel() -> None:
    name = (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::"
        "(anonymous namespace)::TensorListMetadata<1>, at::native::(anonymous namespace)::"
        "BinaryOpScalarFunctor<c10::BFloat16, 1, 1, 0>, std::multiplies<float>, float>(...)"
    )
    t = TraceBuilder().op(
        "aten::_foreach_mul_",
        0,
        50,
        dims=[[[10, 10], [5]], []],
        types=["TensorList", "Scalar"],
        strides=[[[10, 1], [1]], []],
    )
    t.kernel(name, 60, 10, launch_at=10)
    _, costs = _costs(t)
    assert costs.bytes.tolist() == [2 * 105 * 2]
    assert costs.dtype.tolist() == [Dtype.BF16]


def test_tf32_is_read_off_the_kernels_of_the_operator() -> None:
    t = TraceBuilder()
    dims = [[8, 4, 8, 8], [16, 4, 3, 3], [], [], [], [], [], [], []]
    concrete = ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "False", "False", "True"]
    t.op("aten::cudnn_convolution", 0, 90, dims=dims, concrete=concrete)
    t.kernel("void cudnn::engines_precompiled::nchwToNhwcKernel<float>", 100, 10, launch_at=20)
    t.kernel("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc", 110, 30, launch_at=40)
    _, costs = _costs(t)
    assert costs.math.tolist() == [Math.TF32, Math.TF32]
    assert costs.flop.sum() == pytest.approx(2 * 8 * 16 * 64 * 4 * 9)


@pytest.mark.parametrize(
    ("kernel", "dtype", "expected"),
    [
        ("ampere_sgemm_128x128_tn", Dtype.FP32, Math.FP32),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>",
            Dtype.FP32,
            Math.FP32,
        ),
        (
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_ffma",
            Dtype.FP32,
            Math.FP32,
        ),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32", Dtype.FP32, Math.TF32),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256_16x3_nn>",
            Dtype.FP32,
            Math.TF32,
        ),
        ("nvjet_sm90_sss_128x128_32x4_tn", Dtype.FP32, Math.TF32),
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT", Dtype.BF16, Math.BF16),
        (
            "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128>",
            Dtype.BF16,
            Math.BF16,
        ),
        (
            "Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1",
            Dtype.FP32,
            Math.FP32_MATRIX,
        ),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_64x64_16x4_nn>",
            Dtype.FP64,
            Math.FP64_MATRIX,
        ),
        ("sm90_xmma_gemm_f64f64_f64f64_f64_nt_n", Dtype.FP64, Math.FP64_MATRIX),
        ("volta_dgemm_64x64_nn", Dtype.FP64, Math.FP64),
    ],
)
def test_arithmetic_of_matrix_kernels(kernel: str, dtype: Dtype, expected: Math) -> None:
    assert math_of(dtype, unit(kernel), matrix=True) is expected


def test_everything_else_runs_on_the_vector_units() -> None:
    assert math_of(Dtype.BF16, 7, matrix=False) is Math.FP32
    assert math_of(Dtype.FP64, 7, matrix=False) is Math.FP64
    assert math_of(Dtype.UNKNOWN, 0, matrix=False) is Math.UNKNOWN


@pytest.mark.parametrize(
    ("kernel", "element"),
    [
        (
            f"void {_AT}CatArrayBatchedCopy<{_AT}OpaqueType<2u>, unsigned int, 4, 64, 64>",
            (Dtype.UNKNOWN, 2),
        ),
        (
            f"void {_AT}CatArrayBatchedCopy<long, unsigned int, 2, 128, 1>",
            (Dtype.INT64, 8),
        ),
        (
            (
                "multi_tensor_apply_kernel<TensorListScalarListMetadata<float, 3>, "
                "PointwiseOpScalarListFunctor<double, 3, 3, 0>"
            ),
            (Dtype.FP64, 8),
        ),
        (
            (
                "multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, "
                "FusedAdamMathFunctor<float, 4, (ADAM_MODE)1, false>"
            ),
            (Dtype.FP32, 4),
        ),
        ("some_other_kernel<float>", (Dtype.UNKNOWN, 0)),
    ],
)
def test_element_of_lists(kernel: str, element: tuple[Dtype, int]) -> None:
    assert list_element(kernel) == element


@pytest.mark.parametrize("table_size", [1, 2**20])
def test_distinct_arguments_keep_their_own_cost(
    table_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told apart by a table, or by sorting when there are too many combinations for one."""
    monkeypatch.setattr(cost, "_TABLE_SIZE", table_size)
    t = TraceBuilder()
    for i in (*range(1, 40), *range(1, 40)):
        at = 100 * len(t.to_dict()["traceEvents"])
        t.op("aten::mul", at, 50, dims=[[i], [i]]).kernel("k", at + 60, 10, launch_at=at + 5)
    _, costs = _costs(t)
    assert costs.bytes.tolist() == 2 * [12 * i for i in range(1, 40)]
    assert costs.flop.tolist() == 2 * list(range(1, 40))
