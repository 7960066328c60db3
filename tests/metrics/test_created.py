"""Whether a copied tensor was made on the host from nothing."""

from __future__ import annotations

import pytest

from kinetoscope.metrics.transfers import Purpose, transfers
from kinetoscope.testing import TraceBuilder

_Op = tuple[str, float, list[list[int]] | None]
_BATCH = [192, 3, 8192]
_ROW = [8192]


def _purpose(ops: list[_Op]) -> Purpose:
    """What the copy of 18 MiB after these operators (name, us, shapes) is for."""
    t = TraceBuilder()
    t.step(0, 40_000)
    t.kernel("before", 20, 5, launch_at=10)
    at = 100.0
    for name, length, shapes in ops:
        t.op(f"aten::{name}", at, length, dims=shapes)
        at += length + 5
    t.op("aten::to", at, 900)
    t.copy("HtoD Pageable", 18 << 20, at + 60, 800, launch_at=at + 40, launch_dur=850)
    t.step(40_000, 10_000)
    t.kernel("gemm", 40_050, 5_000, launch_at=40_010)
    return Purpose(int(transfers(t.read()).purpose[0]))


@pytest.mark.parametrize(
    "ops",
    [
        # 8192 weights from a factory; 576 rows of 8192 values cannot be made of them alone.
        [("linspace", 20, []), ("sigmoid", 30, [_ROW]), ("mul", 3_000, [_BATCH, _ROW])],
        # One random number decides whether an image is turned.
        [("rand", 5, []), ("lt", 5, [[1]]), ("flip", 2_000, [[3, 224, 224]])],
        # 4 ms of work on something that nothing copied yet, then noise of 1.5 ms.
        [("sub", 4_000, [_BATCH, [1]]), ("randn", 1_000, []), ("add", 500, [_BATCH, _BATCH])],
    ],
    ids=["weights", "decision", "noise"],
)
def test_a_constant_applied_to_data_makes_the_copy_one_of_data(ops: list[_Op]) -> None:
    assert _purpose(ops) is Purpose.DATA


@pytest.mark.parametrize(
    "ops",
    [
        # Distances of 4096 positions: 4096 x 4096 by broadcasting.
        [("arange", 20, []), ("sub", 4_000, [[4096, 1], [4096]]), ("abs", 4_000, [[4096, 4096]])],
        # 4097 frequencies become 8192 moments, twice as many.
        [("randn", 90, []), ("fft_irfft", 900, [[192, 4097]]), ("mul", 900, [[192, 8192]])],
        # Repeating makes a tensor as large as one likes.
        [("arange", 20, []), ("repeat", 900, [[64]]), ("mul", 900, [[4096, 64]])],
        [("randn", 3_000, []), ("mul", 500, [_BATCH, [1]])],
        # A second factory may be larger than the first one.
        [("zeros", 10, []), ("add", 5, [[4]]), ("randn", 3_000, []), ("mul", 500, [_BATCH])],
        # Without shapes nothing tells that there was data.
        [("linspace", 20, None), ("sigmoid", 30, None), ("mul", 3_000, None)],
    ],
    ids=["broadcast", "transform", "repeat", "random", "second", "no shapes"],
)
def test_a_factory_makes_all_that_follows_from_it(ops: list[_Op]) -> None:
    assert _purpose(ops) is Purpose.CREATED
