"""Bounds and efficiencies of kernels whose times were worked out by hand."""

from __future__ import annotations

import pytest

from kinetoscope.metrics.hardware import Peaks
from kinetoscope.metrics.precision import Math
from kinetoscope.metrics.roofline import Basis, Bound, Roofline, achievable_ns, roofline
from kinetoscope.testing import TraceBuilder

#: 100 FLOP/ns in the vector units, 1000 in bf16, 10 bytes/ns: ridges at 10 and 100 FLOP a byte.
_DEVICE = Peaks("test", {Math.FP32: 0.1, Math.BF16: 1.0}, bandwidth_gbps=10.0)
_BF16 = "c10::BFloat16"


def _one(name: str, dims: list[list[int]], kind: str, dur_us: float, kernel: str) -> Roofline:
    t = TraceBuilder().op(name, 0, 50, dims=dims, types=[kind] * len(dims))
    t.kernel(kernel, 60, dur_us, launch_at=10)
    return roofline(t.read(), _DEVICE)


def test_a_product_far_above_the_ridge_is_compute_bound() -> None:
    # 2 * 1024^3 FLOP / 1000 a ns = 2.147 ms; 6.3 MB / 10 a ns = 0.63 ms
    got = _one("aten::mm", [[1024, 1024], [1024, 1024]], _BF16, 4294.967, "gemm")
    assert got.bound.tolist() == [Bound.COMPUTE]
    assert got.basis.tolist() == [Basis.SHAPES]
    assert got.t_roof_ns[0] == pytest.approx(2**31 / 1000)
    assert got.efficiency[0] == pytest.approx(0.5, rel=1e-4)
    assert got.achievable_ns[0] == pytest.approx(2**31 / 800)


def test_a_product_far_below_the_ridge_is_memory_bound() -> None:
    # one row: 2 FLOP for each 2-byte weight
    got = _one("aten::mm", [[1, 4096], [4096, 4096]], _BF16, 5000, "gemm")
    traffic = 2 * (4096 + 4096 * 4096 + 4096)
    assert got.bound.tolist() == [Bound.MEMORY]
    assert got.t_roof_ns[0] == pytest.approx(traffic / 10)
    assert got.achievable_ns[0] == pytest.approx(traffic / 8.5)


def test_elementwise_is_memory_bound() -> None:
    got = _one("aten::mul", [[1000, 1000], [1000, 1000]], "float", 1500, "elementwise_kernel")
    assert got.t_roof_ns[0] == pytest.approx(1.2e6)
    assert got.efficiency[0] == pytest.approx(0.8)
    assert got.bound.tolist() == [Bound.MEMORY]


@pytest.mark.parametrize(
    ("elements", "dur_us", "bound"),
    [
        (1000, 3, Bound.LATENCY),  # 1.2 us of traffic in 3 us
        (2000, 3, Bound.MEMORY),  # 2.4 us in 3 us: short, yet at the roof
        (1000, 40, Bound.LATENCY),  # long, but there was next to nothing to do
        (20000, 40, Bound.MEMORY),
        (20000, 400, Bound.MEMORY),  # slow, but the work is real
    ],
)
def test_latency_needs_little_work_and_a_kernel_off_the_roof(
    elements: int, dur_us: float, bound: Bound
) -> None:
    got = _one("aten::mul", [[elements], [elements]], "float", dur_us, "elementwise_kernel")
    assert got.bound.tolist() == [bound]


def test_faster_than_the_device_is_clamped_and_counted() -> None:
    got = _one("aten::mul", [[1000, 1000], [1000, 1000]], "float", 600, "elementwise_kernel")
    assert got.efficiency.tolist() == [1.0]
    assert got.over_roof.tolist() == [True]
    assert got.over_roof_count == 1
    assert got.t_roof_ns[0] == pytest.approx(1.2e6)


@pytest.mark.parametrize(
    ("kernel", "dur_us", "bound"),
    [
        ("ampere_sgemm_128x64_tn", 50, Bound.COMPUTE),
        ("cudnn_implicit_gemm_fprop", 50, Bound.COMPUTE),
        ("flash_fwd_kernel", 50, Bound.COMPUTE),
        ("vectorized_elementwise_kernel", 50, Bound.MEMORY),
        ("ampere_sgemm_128x64_tn", 5, Bound.LATENCY),
        ("vectorized_elementwise_kernel", 0, Bound.UNKNOWN),
    ],
)
def test_without_shapes_the_family_decides_and_says_so(
    kernel: str, dur_us: float, bound: Bound
) -> None:
    got = roofline(TraceBuilder().op("my::op", 0, 5).kernel(kernel, 10, dur_us).read(), _DEVICE)
    assert got.bound.tolist() == [bound]
    assert got.basis.tolist() == [Basis.FAMILY]
    assert got.t_roof_ns.tolist() == got.efficiency.tolist() == got.achievable_ns.tolist() == [-1.0]


def test_an_unknown_device_falls_back_on_families() -> None:
    t = TraceBuilder().op("aten::mm", 0, 50, dims=[[64, 64], [64, 64]])
    t.kernel("sgemm", 60, 50, launch_at=10)
    got = roofline(t.read(), None)
    assert got.basis.tolist() == [Basis.FAMILY]
    assert got.bound.tolist() == [Bound.COMPUTE]
    assert got.costs.flop.tolist() == [2 * 64**3]


def test_a_generated_kernel_is_judged_by_its_bytes() -> None:
    got = _one(
        "triton_poi_fused_add_0", [[100_000], [100_000]], "float", 100, "triton_poi_fused_add_0"
    )
    assert got.t_roof_ns[0] == pytest.approx(80_000)
    assert got.bound.tolist() == [Bound.MEMORY]


def test_a_type_that_the_device_has_no_unit_for_uses_the_next_best() -> None:
    # float16 is not in the table: the vector rate counts
    got = _one("aten::mm", [[1024, 1024], [1024, 1024]], "c10::Half", 40_000, "gemm")
    assert got.t_roof_ns[0] == pytest.approx(2**31 / 100)


def test_coverage_is_the_share_of_matrix_time_with_a_cost() -> None:
    t = TraceBuilder().op("aten::mm", 0, 50, dims=[[64, 64], [64, 64]])
    t.kernel("sgemm", 60, 30, launch_at=10).kernel("sgemm", 100, 10).kernel(
        "elementwise_kernel", 120, 70
    )
    assert roofline(t.read(), _DEVICE).matrix_coverage_ratio == 0.75


def test_an_empty_trace_has_nothing_to_cover() -> None:
    got = roofline(TraceBuilder().op("aten::mm", 0, 50).read(), _DEVICE)
    assert got.bound.size == 0
    assert got.matrix_coverage_ratio == 1.0


def test_achievable_time_of_a_hypothetical_kernel() -> None:
    assert achievable_ns(_DEVICE, 8000, 0, math=Math.BF16) == pytest.approx(10)
    assert achievable_ns(_DEVICE, 0, 850, math=Math.UNKNOWN) == pytest.approx(100)
    assert achievable_ns(_DEVICE, 8000, 8500, math=Math.BF16) == pytest.approx(1000)
    assert achievable_ns(_DEVICE, -1, 10, math=Math.BF16) == -1
    assert achievable_ns(_DEVICE, 10, 10, math=Math.FP64) == -1


def test_measured_rates_replace_the_share_of_the_data_sheet() -> None:
    device = Peaks("m", {Math.BF16: 1307.4}, 5300.0, achievable_tflops={Math.BF16: 708.0})
    assert achievable_ns(device, 708e3, 0, math=Math.BF16) == pytest.approx(1)
