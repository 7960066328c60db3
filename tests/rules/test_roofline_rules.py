"""The rules about grids and rooflines: what they count, what they leave alone, gains by hand."""

from __future__ import annotations

from typing import Any

import pytest

from kinetoscope.analysis import Analysis, AnalysisOptions
from kinetoscope.metrics.hardware import Peaks
from kinetoscope.metrics.launch_shape import launch_shapes
from kinetoscope.metrics.precision import Math
from kinetoscope.rules.api import Hit
from kinetoscope.rules.registry import all_rules
from kinetoscope.testing import TraceBuilder

RULES = {rule.code: rule for rule in all_rules()}
BF16 = "c10::BFloat16"


def _hits(code: str, t: TraceBuilder, options: AnalysisOptions | None = None) -> tuple[Hit, ...]:
    outcome = RULES[code].run(Analysis(t.read(), options or AnalysisOptions()))
    assert outcome.status != "errored", outcome.reason
    return outcome.hits


def _value(hit: Hit, name: str) -> float | int | str:
    return next(e.value for e in hit.evidence if e.name == name)


def _one_kernel(name: str, dur: float, **more: Any) -> TraceBuilder:
    """One operator with one kernel in each of four steps of 2 ms, waited for."""
    op, dims, types = more.pop("op"), more.pop("dims"), more.pop("types", None)
    strides, concrete = more.pop("strides", None), more.pop("concrete", None)
    t = TraceBuilder(device=more.pop("device", "NVIDIA H200"))
    for step in range(4):
        at = step * 2_000
        t.step(at, 2_000)
        t.op(op, at + 10, 16, dims=dims, types=types, strides=strides, concrete=concrete)
        t.kernel(name, at + 30, dur, launch_at=at + 14, **more)
        t.sync(at + 40, dur)
    return t


def test_blocks_for_a_quarter_of_the_device_gain_half_of_the_rest() -> None:
    t = _one_kernel("reduce_kernel", 1_600, op="aten::sum", dims=[[64, 65_536]], grid=(33, 1, 1))
    (hit,) = _hits("CP203", t)
    assert _value(hit, "multiprocessors_used") == 0.25
    # 33 of 132 multiprocessors: half of the idle 75 % of 1600 us is 600 us of a 2 ms step.
    assert hit.gain.mid == pytest.approx(2_000 / 1_400, rel=0.01)
    assert hit.gain.low == 1.0


def test_a_kernel_beside_another_says_nothing_about_its_grid() -> None:
    t = _one_kernel("reduce_kernel", 1_600, op="aten::sum", dims=[[64, 65_536]], grid=(33, 1, 1))
    for step in range(4):
        t.kernel("gemm", step * 2_000 + 100, 1_500, stream=9, launch_at=step * 2_000 + 20)
    assert not _hits("CP203", t)


def test_a_slow_product_gains_half_of_what_a_good_kernel_would() -> None:
    n = 4_096
    t = _one_kernel(
        "ampere_bf16_s16816gemm", 1_600, op="aten::mm", dims=[[n, n], [n, n]], types=[BF16, BF16]
    )
    (hit,) = _hits("CP205", t)
    # 2 x 4096^3 FLOP at 989.4 TFLOP/s are 138.9 us of 1600; good kernels need 138.9 / 0.8 us.
    assert _value(hit, "roofline_efficiency") == pytest.approx(0.0868, abs=0.001)
    good = 138.9 / 0.8 / 0.85 + 3
    assert hit.gain.mid == pytest.approx(2_000 / (2_000 - (1_600 - good) / 2), rel=0.02)


@pytest.mark.parametrize(("blocks", "fires"), [(144, True), (132, False), (264, False)])
def test_waves_come_from_the_occupancy(blocks: int, fires: bool) -> None:
    per_sm: dict[str, Any] = {"blocks per SM": blocks / 132}
    t = _one_kernel(
        "ampere_sgemm_128x128_nn", 1_600, op="aten::mm", dims=[[2048, 2048], [2048, 2048]],
        grid=(blocks, 1, 1), occupancy=12.5, **per_sm,
    )  # fmt: skip
    # 12.5 % of 64 warps is one block of 8 warps: 132 blocks at a time.
    assert set(launch_shapes(t.read()).resident) == ({1.0} if blocks >= 132 else {-1.0})
    hits = _hits("CP213", t)
    assert bool(hits) == fires
    if fires:
        # 144 blocks take two waves: 1 - 1.0909 / 2 of the time is the tail, half of it likely.
        tail = 1_600 * (1 - 144 / 132 / 2)
        assert hits[0].gain.mid == pytest.approx(2_000 / (2_000 - tail / 2), rel=0.01)


def test_a_transposed_operand_explains_slow_traffic() -> None:
    shape = [8_192, 8_192]

    def adding(second: list[int]) -> TraceBuilder:
        return _one_kernel(
            "elementwise_kernel", 1_600, op="aten::add", dims=[shape, shape, []],
            strides=[[8_192, 1], second, []], grid=(1_056, 1, 1),
        )  # fmt: skip

    (hit,) = _hits("MM312", adding([1, 8_192]))
    # Two tensors read and one written, 805 MB, at 0.65 of 4.8 TB/s: 258 us.
    assert hit.gain.mid == pytest.approx(2_000 / (2_000 - 1_600 + 258), rel=0.01)
    assert not _hits("MM312", adding([8_192, 1]))


def test_peaks_of_the_user_stand_in_for_a_device_that_nobody_knows() -> None:
    t = _one_kernel(
        "vectorized_elementwise_kernel", 1_600, op="aten::add",
        dims=[[8_192, 8_192], [8_192, 8_192], []], device="Imaginary X1",
    )  # fmt: skip
    assert not _hits("MM311", t)
    mine = Peaks(name="X1", tflops={Math.FP32: 10.0}, bandwidth_gbps=600.0)
    (hit,) = _hits("MM311", t, AnalysisOptions(device_peaks=mine))
    assert _value(hit, "achieved") == pytest.approx(3 * 8_192**2 * 4 / 1.6e-3, rel=0.01)
    assert hit.gain.basis == "none"


def _message_passing(
    weights: list[int], *, put: bool = False, links: int = 2_000_000
) -> TraceBuilder:
    """Steps of 2 ms: rows of 64 float32 gathered, scaled, added up; 1.6 ms."""
    t, table, rows = TraceBuilder(), [100_000, 64], [links, 64]
    for step in range(4):
        at = step * 2_000
        t.step(at, 2_000)
        t.op("aten::index", at + 10, 16, dims=[table, []], types=["float", ""])
        t.kernel("vectorized_gather_kernel<16, long>", at + 30, 500, launch_at=at + 14,
                 grid=(2_000_000, 1, 1))  # fmt: skip
        t.op("aten::mul", at + 30, 16, dims=[rows, weights], types=["float", "float"])
        t.kernel("elementwise_kernel", at + 530, 400, launch_at=at + 34)
        added = [table, [], rows, []] if put else [table, [], [links], rows, []]
        types = ["float", "", "float", "Scalar"] if put else ["float", "", "long int", "float", ""]
        t.op("aten::_index_put_impl_" if put else "aten::index_add_", at + 50, 26, dims=added,
             types=types, concrete=["", "0", "", "True", "1"])  # fmt: skip
        for k in range(2 if put else 1):
            t.kernel("indexing_kernel", at + 930 + 350 * k, 350 if put else 700,
                     launch_at=at + 54 + 10 * k)  # fmt: skip
        t.sync(at + 90, 1_545)
    return t


@pytest.mark.parametrize("put", [False, True])
def test_rows_that_are_gathered_to_be_added_up_are_a_sparse_product(put: bool) -> None:
    (hit,) = _hits("CP216", _message_passing([2_000_000, 1], put=put))
    assert _value(hit, "links") == 2_000_000
    # 2 million x (64 x 4 + 8 + 4) bytes and 25.6 MB of result at 0.8 of 4.8 TB/s, and 8 us: 154 us.
    # It is launched after 54 us, and 365 us of the step follow it.
    assert hit.gain.mid == pytest.approx(2_000 / (54 + 154 + 365), rel=0.02)
    assert hit.gain.high == pytest.approx(2_000 / (54 + 125 + 365), rel=0.03)


def test_rows_that_meet_others_before_they_are_added_are_no_sparse_product() -> None:
    hits = _hits("CP216", _message_passing([2_000_000, 64]))
    assert all("sparse" not in hit.message for hit in hits)


def test_rows_of_another_gather_are_no_sparse_product() -> None:
    hits = _hits("CP216", _message_passing([1_900_000, 1], links=1_900_000))
    assert all("sparse" not in hit.message for hit in hits)


def test_links_that_come_from_the_host_in_each_step_make_no_matrix_once() -> None:
    t = _message_passing([2_000_000, 1])
    for step in range(4):  # both ends of 2 million links, 64 bits each
        t.copy("HtoD", 32_000_000, step * 2_000 + 1_640, 300, launch_at=step * 2_000 + 80)
    assert all("sparse" not in hit.message for hit in _hits("CP216", t))


def test_numbers_of_links_that_differ_from_step_to_step_make_no_matrix_once() -> None:
    t = TraceBuilder()
    for step in range(4):
        rows = [1_900_000 + step, 64]
        at = step * 2_000
        t.step(at, 2_000)
        t.op("aten::index_select", at + 10, 16, dims=[[100_000, 64], [], rows[:1]],
             types=["float", "Scalar", "long int"], concrete=["", "0", ""])  # fmt: skip
        t.kernel("vectorized_gather_kernel", at + 30, 700, launch_at=at + 14)
        t.op("aten::index_add_", at + 50, 26, dims=[[100_000, 64], [], rows[:1], rows, []],
             types=["float", "", "long int", "float", ""],
             concrete=["", "0", "", "", "1"])  # fmt: skip
        t.kernel("indexFuncLargeIndex", at + 730, 900, launch_at=at + 54)
        t.sync(at + 90, 1_545)
    assert not _hits("CP216", t)


def test_a_product_of_the_backward_pass_pays_for_its_transpose() -> None:
    """Steps of 3 ms: 800,000 rows of 128 float32 gathered and added in each pass, 0.7 ms each."""
    t, table, rows = TraceBuilder(), [60_000, 128], [800_000, 128]
    for step in range(4):
        at = step * 3_000
        t.step(at, 3_000)
        for i, back in enumerate((False, True)):
            begin, lane = at + 10 + 100 * i, {"tid": 1001} if back else {}
            if back:
                t.backward("IndexSelectBackward0", begin - 5, 90, seq=step)
            t.op("aten::index_select", begin, 16, dims=[table, [], rows[:1]], seq=None if back
                 else step, types=["float", "Scalar", "long int"], **lane)  # fmt: skip
            t.kernel("vectorized_gather_kernel", at + 30 + 1_400 * i, 600, launch_at=begin + 4,
                     **lane)  # fmt: skip
            t.op("aten::index_add_", begin + 20, 26, dims=[table, [], rows[:1], rows, []],
                 types=["float", "", "long int", "float", ""],
                 concrete=["", "0", "", "", "1"], **lane)  # fmt: skip
            t.kernel("indexFuncLargeIndex", at + 630 + 1_400 * i, 800, launch_at=begin + 24, **lane)
        t.sync(at + 220, 2_615)
    (hit,) = _hits("CP216", t)
    # 800,000 x (512 + 8 + 4) bytes and a result of 30.7 MB: 450 MB at 0.8 of 4.8 TB/s are 117 us,
    # and 8 for the kernels; the transpose 100 us and 256 bytes a link, 43 us.
    assert hit.gain.mid == pytest.approx(3_000 / (3_000 - 2_800 + 2 * 125 + 143), rel=0.05)


def test_rows_that_an_optimizer_adds_to_its_table_are_no_sparse_product() -> None:
    t = _message_passing([2_000_000, 1])
    for step in range(4):
        t.annotation("Optimizer.step#SGD.step", step * 2_000 + 5, 80)
    assert not _hits("CP216", t)


@pytest.mark.parametrize(
    ("op", "kernel"),
    [
        pytest.param(
            "aten::gather", "vectorized_gather_kernel<16, long>", id="whole rows are read"
        ),
        pytest.param("aten::index_add_", "indexFuncLargeIndex", id="whole rows are added"),
        pytest.param("aten::_embedding_bag", "EmbeddingBag_updateOutputKernel", id="a bag"),
    ],
)
def test_what_the_advice_leads_to_has_no_faster_form(op: str, kernel: str) -> None:
    dims = {
        "aten::gather": [[1000, 4], [], [100_000, 4], [], []],
        "aten::index_add_": [[1000, 4], [], [100_000], [100_000, 4], []],
        "aten::_embedding_bag": [[1000, 4], [100_000], [100], [], []],
    }[op]
    assert not _hits("CP216", _one_kernel(kernel, 1_600, op=op, dims=dims))


def test_a_lookup_is_not_measured_by_the_speed_of_reading_in_order() -> None:
    t = _one_kernel(
        "EmbeddingBag_updateOutputKernel_sum_mean", 1_800, op="aten::_embedding_bag",
        dims=[[4_000_000, 64], [4_000_000], [65_536], [], []],
        types=["float", "long int", "long int", "Scalar", "Scalar"],
    )  # fmt: skip
    (hit,) = _hits("CP204", t)  # 1.07 GB in 1.8 ms: 12 % of the bandwidth
    assert hit.gain.basis == "none"
    assert "roofline" not in hit.message


@pytest.mark.parametrize(("op", "gains"), [("aten::index_add_", False), ("aten::add_", True)])
def test_an_update_by_sparse_gradients_cannot_be_fused(op: str, gains: bool) -> None:
    rows = [2_000_000, 64]
    dims = [[4_000_000, 64], [], rows[:1], rows, []] if not gains else [rows, rows, []]
    t = _one_kernel("a_kernel", 1_500, op=op, dims=dims)
    for step in range(4):
        t.annotation("Optimizer.step#SGD.step", step * 2_000 + 5, 30)
    (hit,) = _hits("CP227", t)
    # 1.5 GB in 1.5 ms is a fifth of the bandwidth in both.
    assert (hit.gain.basis != "none") is gains
    assert ("fused" in hit.fix.snippet) is gains


def test_a_sort_before_adding_is_named() -> None:
    t = _one_kernel(
        "indexing_backward_kernel", 1_600, op="aten::index_put_",
        dims=[[100_000, 64], [], [200_000, 64], []], concrete=["", "", "", "True"],
    )  # fmt: skip
    (hit,) = _hits("CP216", t)
    assert "index_add_" in hit.fix.summary
    # Read, read again and write 51.2 MB at a quarter of 4.8 TB/s: 128 us.
    assert hit.gain.mid == pytest.approx(2_000 / (2_000 - 1_600 + 128), rel=0.02)


def _attending(
    mask: list[int],
    strides: list[int] | None,
    *,
    made: str = "",
    back: str = "False",
    keys: int = 1024,
) -> TraceBuilder:
    """Steps of 3 ms: attention of 4 x 8 heads of 64 over 1024 positions takes 1 + 1.6 ms."""
    t, q, k = TraceBuilder(), [4, 8, 1024, 64], [4, 8, keys, 64]
    name = "aten::_scaled_dot_product_efficient_attention"
    tensors = [BF16, BF16, BF16, BF16 if mask else ""]
    for step in range(4):
        at = step * 3_000
        t.step(at, 3_000)
        if made:
            compared = [[1024, 1], [1, 1024]]
            t.op(made, at + 5, 8, dims=compared if made == "aten::ge" else [[1024, 1024], []])
        t.op(name, at + 20, 40, dims=[q, k, k, mask], types=tensors, seq=step,
             strides=[[], [], [], strides or []])  # fmt: skip
        t.kernel("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", at + 60, 1_000, launch_at=at + 30)
        t.backward("ScaledDotProductEfficientAttentionBackward0", at + 70, 60, seq=step)
        t.op(f"{name}_backward", at + 75, 50, dims=[q, q, k, k, mask], tid=1001,
             types=[BF16, *tensors],
             concrete=[""] * 10 + [f"[True, True, True, {back}]"])  # fmt: skip
        t.kernel("fmha_cutlassB_bf16_aligned_64x64_k64_sm80", at + 1_060, 1_600,
                 launch_at=at + 90, tid=1001)  # fmt: skip
        t.sync(at + 140, 2_525)
    return t


@pytest.mark.parametrize(
    ("mask", "strides", "made"),
    [
        pytest.param([1024, 1024], None, "aten::triu", id="one matrix"),
        pytest.param([4, 8, 1024, 1024], [0, 0, 1024, 1], "aten::triu", id="expanded"),
        pytest.param([1024, 1024], None, "aten::ge", id="positions compared"),
    ],
)
def test_a_causal_mask_written_out_computes_the_hidden_half(
    mask: list[int], strides: list[int] | None, made: str
) -> None:
    (hit,) = _hits("CP207", _attending(mask, strides, made=made))
    # 8 blocks of 128 a side: 36 of 64 stay, each 0.75 of the time: 0.422 of 2.6 ms. 0.4 ms stay.
    assert hit.gain.mid == pytest.approx(3_000 / (400 + 0.422 * 2_600), rel=0.02)
    # At worst a block takes 1.1 of its time, at best half of it.
    assert hit.gain.low == pytest.approx(3_000 / (400 + 0.619 * 2_600), rel=0.02)
    assert hit.gain.high == pytest.approx(3_000 / (400 + 0.281 * 2_600), rel=0.02)
    assert hit.at_most == "critical"
    assert _value(hit, "attention_time") == 2_600_000


def test_a_mask_that_nobody_saw_made_may_be_another_one() -> None:
    (hit,) = _hits("CP207", _attending([1024, 1024], None))
    assert (hit.at_most, hit.confidence, hit.gain.low) == ("medium", 0.4, 1.0)
    (hit,) = _hits("CP207", _attending([1024, 1024], None, made="aten::eq"))  # documents
    assert hit.at_most == "medium"
    (hit,) = _hits("CP207", _attending([4, 1, 1024, 1024], None))  # one a sequence
    assert hit.at_most == "medium"


@pytest.mark.parametrize(
    "t",
    [
        pytest.param(_attending([], None, made="aten::triu"), id="no mask"),
        pytest.param(_attending([4, 1, 1, 1024], None, made="aten::triu"), id="padding"),
        pytest.param(
            _attending([4, 8, 1024, 1024], [0, 1024**2, 1024, 1], made="aten::triu"),
            id="a bias for each head",
        ),
        pytest.param(_attending([1024, 1024], None, made="aten::triu", back="True"), id="learned"),
        pytest.param(_attending([1024, 512], None, keys=512), id="other keys than queries"),
    ],
)
def test_masks_that_say_more_than_is_causal_are_left_alone(t: TraceBuilder) -> None:
    assert all("mask of" not in hit.message for hit in _hits("CP207", t))
