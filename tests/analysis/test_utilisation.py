"""MFU: FLOP over step time and the data sheet's rate, by hand."""

from __future__ import annotations

import pytest

from kinetoscope.analysis import Analysis
from kinetoscope.analysis.utilisation import utilisation
from kinetoscope.testing import TraceBuilder

BF16 = "c10::BFloat16"
N = 8_192


def _products(*, shapes: bool = True, device: str = "NVIDIA H200") -> TraceBuilder:
    """A bfloat16 product of 8192^3 and an addition in each of four steps of 4 ms."""
    t = TraceBuilder(device=device)
    for step in range(4):
        at = step * 4_000
        t.step(at, 4_000)
        dims = [[N, N], [N, N]] if shapes else None
        t.op("aten::mm", at + 10, 12, dims=dims, types=[BF16, BF16] if shapes else None)
        t.kernel("nvjet_tst_256x128", at + 30, 2_000, launch_at=at + 14)
        t.op("aten::add", at + 30, 12, dims=[[N, N], [N, N], []] if shapes else None)
        t.kernel("vectorized_elementwise_kernel", at + 2_030, 1_000, launch_at=at + 34)
        t.sync(at + 50, 2_980)
    return t


def test_mfu_is_flop_over_step_time_and_peak() -> None:
    analysis = Analysis(_products().read())
    found = utilisation(analysis)
    assert found is not None
    assert found.flop_per_step == 2 * N**3
    # 2 x 8192^3 FLOP at 989.4 TFLOP/s are 1.1113 ms.
    step_ms = analysis.step_time.mid / 1e6
    assert found.mfu == pytest.approx(1.1113 / step_ms, rel=0.01)
    assert found.hfu == found.mfu
    assert found.coverage == 1.0
    assert not found.lower_bound


def test_products_without_shapes_make_it_a_lower_bound() -> None:
    t = _products()
    for step in range(4):
        t.kernel("nvjet_tst_128x256", step * 4_000 + 3_100, 700, launch_at=step * 4_000 + 45)
    found = utilisation(Analysis(t.read()))
    assert found is not None
    assert found.lower_bound
    assert found.coverage == pytest.approx(3_000 / 3_700, rel=0.001)


def test_a_use_that_is_small_is_not_zero() -> None:
    """2 x 64^3 FLOP in 4 ms: 1.3e-7 of 989.4 TFLOP/s."""
    t = TraceBuilder(device="NVIDIA H200")
    for step in range(4):
        at = step * 4_000
        t.step(at, 4_000)
        t.op("aten::mm", at + 10, 12, dims=[[2_048, 64], [64, 64]], types=[BF16, BF16])
        t.kernel("nvjet_tst_64x64", at + 30, 3_900, launch_at=at + 14)
    found = utilisation(Analysis(t.read()))
    assert found is not None
    assert 0 < found.mfu < 0.0001


def test_without_shapes_or_a_known_device_there_is_none() -> None:
    assert utilisation(Analysis(_products(shapes=False).read())) is None
    assert utilisation(Analysis(_products(device="Imaginary X1").read())) is None
