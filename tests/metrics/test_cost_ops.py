"""FLOP and bytes of single operators against numbers worked out by hand from the shapes."""

from __future__ import annotations

from typing import Any

import pytest

from kinetoscope.metrics.cost import op_cost
from kinetoscope.metrics.cost_args import UNKNOWN, Args, Cost
from kinetoscope.metrics.cost_ops import find_op
from kinetoscope.metrics.precision import Dtype

F, H, B, L = "float", "c10::Half", "c10::BFloat16", "long int"


def cost(
    name: str,
    dims: list[Any],
    types: list[str],
    concrete: list[str] | None = None,
    strides: list[Any] | None = None,
    element: tuple[Dtype, int] = (Dtype.UNKNOWN, 0),
) -> Cost:
    op = find_op(name)
    assert op is not None, name
    return op_cost(op, Args(dims, types, strides or [], concrete or [], element))


def work(*args: Any, **options: Any) -> tuple[float, float]:
    return cost(*args, **options)[:2]


# --- matrix products ---------------------------------------------------------------------------


def test_mm_4096_cubed() -> None:
    got = cost("aten::mm", [[4096, 4096], [4096, 4096]], [B, B])
    assert got.flop == 137_438_953_472  # 2 x 4096^3
    assert got.bytes == 100_663_296  # 3 x 4096^2 x 2
    assert got.gemm == (4096, 4096, 4096, 1)
    assert (got.dtype, got.matrix) == (Dtype.BF16, True)


@pytest.mark.parametrize(
    ("name", "dims", "types", "flop", "traffic"),
    [
        # bias[4], [2,3] x [3,4]: 2*24 + 8; (6 + 12 + 8 + 4) * 4
        ("aten::addmm", [[4], [2, 3], [3, 4], [], []], [F, F, F, "Scalar", "Scalar"], 56, 120),
        ("aten::bmm", [[5, 2, 3], [5, 3, 4]], [H, H], 240, 5 * 26 * 2),
        ("aten::baddbmm", [[5, 2, 4], [5, 2, 3], [5, 3, 4]], [F, F, F], 280, (5 * 26 + 40) * 4),
        ("aten::mv", [[8, 16], [16]], [F, F], 256, (128 + 16 + 8) * 4),
        ("aten::dot", [[16], [16]], [F, F], 32, 33 * 4),
        # [2,5,3] x [4,3] + [4]: ten rows
        ("aten::linear", [[2, 5, 3], [4, 3], [4]], [F, F, F], 280, (30 + 12 + 40 + 4) * 4),
        ("aten::matmul", [[2, 5, 2, 3], [3, 4]], [F, F], 480, (60 + 12 + 80) * 4),
        ("aten::matmul", [[3], [3, 4]], [F, F], 24, (3 + 12 + 4) * 4),
        ("aten::_int_mm", [[32, 64], [64, 16]], ["signed char"] * 2, 65536, 2048 + 1024 + 512 * 4),
        # complex products are four real ones
        ("aten::mm", [[2, 3], [3, 4]], ["c10::complex<float>"] * 2, 192, 26 * 8),
        # [M,K] x [G,K,N]: 2MKN, all of the weights
        (
            "aten::_grouped_mm",
            [[64, 8], [4, 8, 16], [4]],
            [B, B, "int"],
            16384,
            (512 + 512 + 1024) * 2,
        ),
        # [M,K] x [K,N] split along K: a result for each of two groups
        (
            "aten::_grouped_mm",
            [[8, 64], [64, 16], [2]],
            [B, B, "int"],
            16384,
            (512 + 1024 + 256) * 2,
        ),
        (
            "_C::cutlass_scaled_mm",
            [[8, 16], [8, 32], [32, 16]],
            [B, "c10::Float8_e4m3fn", "c10::Float8_e4m3fn"],
            8192,
            256 + 512 + 256,
        ),
    ],
)
def test_matrix_products(
    name: str, dims: list[Any], types: list[str], flop: float, traffic: float
) -> None:
    assert work(name, dims, types) == (flop, traffic)


def test_scaled_mm_has_an_output_type_of_its_own() -> None:
    fp8 = "c10::Float8_e4m3fn"
    dims = [[8, 32], [32, 16], [], [], [], [], [], []]
    types = [fp8, fp8, F, F, "", "", "Scalar", "Scalar"]
    concrete = ["", "", "", "", "", "", "6", "True"]
    assert work("aten::_scaled_mm", dims, types, concrete) == (8192, 256 + 512 + 128 * 4)


def test_fp4_shapes_count_bytes_of_two_elements() -> None:
    fp4 = "c10::Float4_e2m1fn_x2"
    got = cost("aten::_scaled_mm", [[8, 32], [32, 16]], [fp4, fp4], ["", ""])
    assert got.flop == 2 * 8 * 16 * 64
    assert got.bytes == 256 + 512 + 128 * 2


# --- convolution -------------------------------------------------------------------------------


def test_cudnn_convolution_with_stride_padding_and_groups() -> None:
    # out = floor((56 + 2 - 2 - 1) / 2) + 1 = 28; weight [128, 64/2, 3, 3]
    dims = [[8, 64, 56, 56], [128, 32, 3, 3], [], [], [], [], [], [], []]
    types = [H, H, "ScalarList", "ScalarList", "ScalarList", *["Scalar"] * 4]
    concrete = ["", "", "[1, 1]", "[2, 2]", "[1, 1]", "2", "False", "False", "True"]
    flop, traffic = work("aten::cudnn_convolution", dims, types, concrete)
    assert flop == 2 * 8 * 128 * 28 * 28 * 32 * 9
    assert traffic == 2 * (8 * 64 * 56 * 56 + 128 * 32 * 9 + 8 * 128 * 28 * 28)


def test_dilated_convolution_of_miopen() -> None:
    # (x, w, bias, padding, stride, dilation): out = 32 + 2*2 - 2*2 - 1 + 1 = 32
    dims = [[1, 4, 32], [8, 4, 3], [], [], [], [], []]
    types = [F, F, "", "ScalarList", "ScalarList", "ScalarList", "Scalar"]
    concrete = ["", "", "", "[2]", "[1]", "[2]", "1"]
    flop, traffic = work("aten::miopen_convolution", dims, types, concrete)
    assert flop == 2 * 8 * 32 * 4 * 3
    assert traffic == 4 * (128 + 96 + 256)


def test_transposed_convolution_works_on_its_input() -> None:
    # out = (16 - 1) * 2 - 2 + 3 + 1 = 32; weight [Ci=8, Co/g=4, 3, 3]
    dims = [[2, 8, 16, 16], [8, 4, 3, 3], [], [], [], [], [], [], []]
    types = [F, F, "", "ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList", "Scalar"]
    concrete = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "True", "[1, 1]", "1"]
    flop, traffic = work("aten::convolution", dims, types, concrete)
    assert flop == 2 * (2 * 8 * 16 * 16) * 4 * 9
    assert traffic == 4 * (4096 + 288 + 2 * 4 * 32 * 32)


@pytest.mark.parametrize(
    ("mask", "passes", "extra"), [("[True, True, False]", 2, 0), ("[False, True, True]", 1, 8192)]
)
def test_convolution_backward_follows_its_mask(mask: str, passes: int, extra: int) -> None:
    # grad [2,16,16,16], x [2,4,16,16], weight [16,4,3,3]
    dims = [[2, 16, 16, 16], [2, 4, 16, 16], [16, 4, 3, 3], *[[]] * 8]
    types = [F, F, F, *["ScalarList"] * 4, "Scalar", "ScalarList", "Scalar", "ScalarList"]
    concrete = ["", "", "", "[0]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", mask]
    flop, traffic = work("aten::convolution_backward", dims, types, concrete)
    assert flop == passes * 2 * 8192 * 4 * 9 + extra
    assert traffic == passes * 4 * (8192 + 2048 + 576)


def test_convolution_without_values_is_unknown() -> None:
    dims = [[8, 64, 56, 56], [128, 64, 3, 3], [], [], []]
    got = cost("aten::cudnn_convolution", dims, [F, F, "ScalarList", "ScalarList", "ScalarList"])
    assert got == UNKNOWN


# --- attention ---------------------------------------------------------------------------------

_LSE = 4 * 2 * 16 * 1024


@pytest.mark.parametrize(("causal", "factor"), [("True", 0.5), ("False", 1.0)])
def test_cudnn_attention(causal: str, factor: float) -> None:
    q = [2, 16, 1024, 64]
    dims = [q, q, q, *[[]] * 10]
    types = [B, B, B, "", "", "", *["Scalar"] * 6, ""]
    concrete = ["", "", "", "", "", "", "1024", "1024", "True", "0.", causal, "False", ""]
    flop, traffic = work("aten::_cudnn_attention_forward", dims, types, concrete)
    assert flop == factor * 2 * 2 * 16 * 1024 * 1024 * (64 + 64)
    assert traffic == 2 * 4 * (2 * 16 * 1024 * 64) + _LSE


def test_flash_attention_is_sequence_first_and_knows_grouped_heads() -> None:
    # 32 query heads, 8 key heads; 1 query of 1024 keys
    dims = [[4, 1, 32, 128], [4, 1024, 8, 128], [4, 1024, 8, 128], *[[]] * 7]
    types = [H, H, H, "", "", *["Scalar"] * 5]
    concrete = ["", "", "", "", "", "1", "1024", "0.", "True", "False"]
    flop, traffic = work("aten::_flash_attention_forward", dims, types, concrete)
    assert flop == 2 * 4 * 32 * 1 * 1024 * 256  # the one query sees all keys
    assert traffic == 2 * (2 * 16384 + 2 * 4 * 8 * 1024 * 128) + 4 * 4 * 32


def test_causal_with_fewer_queries_than_keys() -> None:
    q, k = [1, 1, 64, 32], [1, 1, 128, 32]
    concrete = ["", "", "", "", "0.", "True", "", "False"]
    flop, _ = work("aten::scaled_dot_product_attention", [q, k, k], [F, F, F], concrete)
    assert flop == 2 * 64 * 128 * 64 * (1 - 63 / 256)


def test_efficient_attention_has_a_mask_type() -> None:
    q = [2, 256, 4, 64]
    dims = [q, q, q, *[[]] * 11]
    types = [F, F, F, "", "", "", "", "", "Scalar", "Scalar", "Scalar", "", "", ""]
    for mask, factor in (("0", 1.0), ("1", 0.5), ("2", 0.5)):
        concrete = ["", "", "", "", "", "", "", "", "0.", mask, "True", "", "", ""]
        flop, _ = work("aten::_efficient_attention_forward", dims, types, concrete)
        assert flop == factor * 2 * 2 * 4 * 256 * 256 * 128


def test_attention_backward_is_five_products() -> None:
    q = [2, 16, 1024, 64]
    dims = [q, q, q, q, q, [2, 16, 1024, 1], *[[]] * 9]
    types = [B, B, B, B, B, F, L, L, "", "", "", "Scalar", "Scalar", "Scalar", "Scalar"]
    concrete = [*[""] * 11, "1024", "1024", "0.", "False"]
    flop, traffic = work("aten::_cudnn_attention_backward", dims, types, concrete)
    assert flop == 5 * 2 * 2 * 16 * 1024 * 1024 * 64
    # reads q k v out grad_out, writes three gradients
    assert traffic == 8 * (2 * 16 * 1024 * 64) * 2 + _LSE


def test_packed_sequences_count_as_equal_ones() -> None:
    dims = [[400, 8, 64], [400, 8, 64], [400, 8, 64], [5], [5], [], [], [], [], []]
    types = [H, H, H, "int", "int", *["Scalar"] * 5]
    concrete = ["", "", "", "", "", "120", "120", "0.", "False", "False"]
    flop, _ = work("aten::_flash_attention_forward", dims, types, concrete)
    assert flop == 4 * 2 * 8 * 100 * 100 * 128


def test_attention_without_values_is_unknown() -> None:
    q = [2, 16, 1024, 64]
    assert cost("aten::_cudnn_attention_forward", [q, q, q], [B, B, B]) == UNKNOWN


# --- element-wise ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dims", "types", "flop", "traffic"),
    [
        # a [512,1024] row is read once, not eight times
        (
            "aten::add",
            [[8, 512, 1024], [512, 1024], []],
            [F, F, "Scalar"],
            4194304,
            4 * (2 * 4194304 + 524288),
        ),
        # both inputs broadcast
        ("aten::mul", [[64, 1], [1, 32]], [F, F], 2048, 4 * (64 + 32 + 2048)),
        # bf16 + float gives float
        ("aten::add", [[100], [100], []], [B, F, "Scalar"], 100, 100 * (2 + 4 + 4)),
        # a Python number does not change the type
        ("aten::mul", [[100], []], [H, "double"], 100, 100 * 4 + 8),
        ("aten::div", [[100], []], [L, F], 100, 100 * (8 + 4) + 4),
        ("aten::eq", [[100], [100]], [F, F], 100, 900),
        ("aten::add_", [[100], [100], []], [B, F, "Scalar"], 100, 100 * (2 + 4 + 2)),
        ("aten::where", [[100], [100], []], ["bool", F, F], 100, 100 * (1 + 4 + 4) + 4),
        ("aten::masked_fill_", [[4, 100], [100], []], [F, "bool", "Scalar"], 400, 1600 * 2 + 100),
        ("aten::gelu", [[100], []], [B, ""], 800, 400),
        ("aten::addcmul_", [[10], [10], [10], []], [F, F, F, "Scalar"], 30, 160),
        # the `out=` tensor is no input
        ("aten::clamp_min", [[100], [], [100]], [F, "Scalar", F], 100, 800),
        ("aten::copy_", [[64, 32], [64, 32], []], [B, F, "Scalar"], 0, 2048 * 6),
        ("aten::fill_", [[100], []], [F, "Scalar"], 0, 400),
        ("aten::native_dropout", [[100], [], []], [H, "Scalar", "Scalar"], 100, 500),
        ("aten::native_dropout_backward", [[100], [100], []], [H, "bool", "Scalar"], 100, 500),
        ("aten::glu", [[8, 20], []], [F, "Scalar"], 400, 4 * (160 + 80)),
    ],
)
def test_elementwise(
    name: str, dims: list[Any], types: list[str], flop: float, traffic: float
) -> None:
    assert work(name, dims, types) == (flop, traffic)


def test_an_expanded_input_is_read_once() -> None:
    strides = [[0, 0], []]
    got = work("aten::div", [[256, 1024], []], [F, L], strides=strides)
    assert got == (262144, 4 + 8 + 4 * 262144)


def test_generated_kernels_have_bytes_and_no_flop() -> None:
    dims = [[16, 1024], [16384], [1024], []]
    got = work("triton_poi_fused_add_0", dims, [F, B, F, "Scalar"])
    assert got == (-1, 4 * 16384 + 2 * 16384 + 4 * 1024)


@pytest.mark.parametrize(
    "name", ["triton_tem_fused_mm_1", "triton_poi_fused_embedding_0", "my::op"]
)
def test_operators_without_a_formula(name: str) -> None:
    assert find_op(name) is None


# --- tensor lists ------------------------------------------------------------------------------

_SHAPES = [[128, 128], [128], []]  # 16384 + 128 + 1 elements
_FP32 = (Dtype.FP32, 4)


@pytest.mark.parametrize(
    ("name", "lists", "flop", "elements"),
    [
        ("aten::_foreach_mul_", 1, 16513, 2 * 16513),
        ("aten::_foreach_add_", 2, 16513, 3 * 16513),
        ("aten::_foreach_addcdiv_", 3, 16513, 4 * 16513),
        ("aten::_foreach_sqrt", 1, 16513, 2 * 16513),
        ("aten::_foreach_copy_", 2, 0, 2 * 16513),
        ("aten::_foreach_norm", 1, 2 * 16513, 16513),
        ("aten::_foreach_zero_", 1, 0, 16513),
        ("aten::cat", 1, 0, 2 * 16513),
    ],
)
def test_foreach(name: str, lists: int, flop: float, elements: int) -> None:
    dims: list[Any] = [*[_SHAPES] * lists, []]
    types = [*["TensorList"] * lists, "Scalar"]
    assert work(name, dims, types, element=_FP32) == (flop, 4 * elements)
    assert work(name, dims, types, element=(Dtype.BF16, 2))[1] == 2 * elements


def test_lists_that_were_cut_or_have_no_type_are_unknown() -> None:
    assert cost("aten::_foreach_mul_", [[], []], ["TensorList", ""], element=_FP32) == UNKNOWN
    assert cost("aten::_foreach_mul_", [_SHAPES, []], ["TensorList", ""]) == UNKNOWN


@pytest.mark.parametrize(
    ("name", "lists", "bytes_each"),
    [
        # parameters, gradients, then states; bytes an element from the update rules
        ("aten::_fused_adamw_", [1000, 1000, 1000, 1000, 0, 1], 28),
        ("aten::_fused_adam_", [1000, 1000, 1000, 1000, 1000, 1], 36),
        ("aten::_fused_sgd_", [1000, 1000, 0], 12),
        ("aten::_fused_sgd_", [1000, 1000, 1000], 20),
        ("aten::_fused_adagrad_", [1000, 1000, 1000, 1], 20),
    ],
)
def test_fused_optimizers(name: str, lists: list[int], bytes_each: int) -> None:
    dims = [[[n]] if n else [] for n in lists]
    types = ["TensorList"] * len(lists)
    assert work(name, dims, types, element=_FP32)[1] == 1000 * bytes_each


# --- norms, softmax, reductions, losses, pooling, indexing -------------------------------------


@pytest.mark.parametrize(
    ("name", "dims", "types", "concrete", "traffic"),
    [
        # x, y, weight and bias, two float statistics for each of 32 rows
        (
            "aten::native_layer_norm",
            [[32, 64], [], [64], [64], []],
            [B, "ScalarList", B, B, "Scalar"],
            None,
            2 * 2 * 2048 + 256 + 256,
        ),
        (
            "aten::native_layer_norm_backward",
            [[32, 64], [32, 64], [], [32, 1], [32, 1], [64], [64], []],
            [F, F, "ScalarList", F, F, F, F, "ScalarList"],
            None,
            3 * 8192 + 4 * 256,
        ),
        (
            "aten::cudnn_batch_norm",
            [[2, 8, 4, 4], [8], [8], [8], [8], [], [], []],
            [F] * 5 + ["Scalar"] * 3,
            ["", "", "", "", "", "True", "0.1", "1e-05"],
            3 * 1024 + 4 * 32,
        ),
        (
            "aten::native_batch_norm",
            [[2, 8, 4, 4], [8], [8], [8], [8], [], [], []],
            [F] * 5 + ["Scalar"] * 3,
            ["", "", "", "", "", "False", "0.1", "1e-05"],
            2 * 1024 + 4 * 32,
        ),
        (
            "aten::_fused_rms_norm",
            [[32, 64], [], [64], []],
            [B, "ScalarList", B, "Scalar"],
            None,
            2 * 4096 + 128,
        ),
        (
            "aten::_softmax",
            [[32, 64], [], []],
            [H, "Scalar", "Scalar"],
            ["", "-1", "False"],
            2 * 4096,
        ),
        (
            "aten::_softmax",
            [[32, 64], [], []],
            [H, "Scalar", "Scalar"],
            ["", "-1", "True"],
            4096 + 8192,
        ),
        (
            "aten::_log_softmax_backward_data",
            [[32, 64], [32, 64], [], []],
            [B, B, "Scalar", "Scalar"],
            ["", "", "1", "15"],
            3 * 4096,
        ),
        (
            "aten::sum",
            [[32, 64], [], [], []],
            [F, "ScalarList", "Scalar", ""],
            ["", "[0]", "True", ""],
            8192 + 256,
        ),
        (
            "aten::mean",
            [[32, 64], [], [], []],
            [F, "ScalarList", "Scalar", ""],
            ["", "[]", "False", ""],
            8192 + 4,
        ),
        (
            "aten::argmax",
            [[32, 64], [], []],
            [F, "Scalar", "Scalar"],
            ["", "-1", "False"],
            8192 + 32 * 8,
        ),
        ("aten::cumsum", [[32, 64], [], []], [F, "Scalar", ""], None, 2 * 8192),
        (
            "aten::nll_loss_forward",
            [[32, 64], [32], [], [], []],
            [F, L, "", "Scalar", "Scalar"],
            None,
            32 * 12,
        ),
        ("aten::mse_loss", [[100], [100], []], [F, F, "Scalar"], ["", "", "1"], 804),
        # out = (112 + 2 - 2 - 1) / 2 + 1 = 56, with 8-byte indices
        (
            "aten::max_pool2d_with_indices",
            [[1, 4, 112, 112], [], [], [], [], []],
            [F, *["ScalarList"] * 4, "Scalar"],
            ["", "[3, 3]", "[2, 2]", "[1, 1]", "[1, 1]", "False"],
            4 * 4 * 112 * 112 + 12 * 4 * 56 * 56,
        ),
        (
            "aten::avg_pool2d",
            [[1, 4, 8, 8], [], [], [], [], [], []],
            [F, *["ScalarList"] * 3, "Scalar", "Scalar", ""],
            ["", "[2]", "[]", "[0]", "False", "True", ""],
            4 * (256 + 4 * 8 * 4),
        ),
        (
            "aten::upsample_nearest2d",
            [[1, 3, 8, 8], [], [], []],
            [H, "ScalarList", "", ""],
            ["", "[16, 16]", "", ""],
            2 * (192 + 768),
        ),
        (
            "aten::index_select",
            [[1000, 64], [], [10]],
            [B, "Scalar", L],
            ["", "0", ""],
            80 + 2 * 640 * 2,
        ),
        (
            "aten::gather",
            [[100, 8], [], [20, 8], []],
            [F, "Scalar", L, "Scalar"],
            None,
            160 * 8 + 2 * 160 * 4,
        ),
        (
            "aten::scatter_add_",
            [[100, 8], [], [20, 8], [20, 8]],
            [F, "Scalar", L, F],
            None,
            160 * 8 + 3 * 160 * 4,
        ),
        # 60 rows of 8 into 5 bags: 60 indices, 60 rows read, 5 written
        (
            "aten::_embedding_bag",
            [[1000, 8], [60], [5], [], [], [], [], [], []],
            [F, L, L, "Scalar", "Scalar", "Scalar", "", "Scalar", "Scalar"],
            None,
            60 * 8 + 65 * 8 * 4,
        ),
        # 50 tokens of 1000 rows: the gradients are read, at most 50 rows written
        (
            "aten::embedding_dense_backward",
            [[50, 64], [50], [], [], []],
            [F, L, "Scalar", "Scalar", "Scalar"],
            ["", "", "1000", "-1", "False"],
            12800 + 400 + 12800,
        ),
    ],
)
def test_bytes_of_memory_bound_operators(
    name: str, dims: list[Any], types: list[str], concrete: list[str] | None, traffic: float
) -> None:
    assert cost(name, dims, types, concrete).bytes == traffic


@pytest.mark.parametrize(
    ("dims", "types"),
    [
        ([], []),
        ([[2, 3]], [F]),
        ([[2, 3], [3]], [F, F]),
        ([[2, 3], "x"], [F, F]),
        ([[2, 3], [[3, 4]]], [F, F]),
        ([[2, 3], [3, 4]], ["", ""]),
        ([[2, 3], [3, 4]], [None, 5]),
    ],
)
def test_arguments_that_do_not_fit_the_schema_are_unknown(
    dims: list[Any], types: list[Any]
) -> None:
    assert cost("aten::mm", dims, types) == UNKNOWN
