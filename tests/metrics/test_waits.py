"""What makes the host wait, on traces written by hand."""

from __future__ import annotations

import pytest

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.waits import SMALL_READ_BYTES, Wait
from kinetoscope.testing import TraceBuilder


def _reasons(builder: TraceBuilder) -> list[Wait]:
    return [Wait(int(reason)) for reason in Analysis(builder.read()).waits.reason]


def _waiting(op: str, size: int, *, inner: str = "aten::copy_") -> TraceBuilder:
    """An operator that copies `size` bytes to the host and waits, and a launch after it."""
    t = TraceBuilder()
    t.step(0, 200)
    t.op(op, 10, 80)
    t.op(inner, 12, 76)
    t.copy("DtoH Pageable", size, 30, 5, launch_at=20, launch_dur=6)
    t.sync(30, 10)
    return t.kernel("gemm", 120, 10, launch_at=110)


@pytest.mark.parametrize(
    ("op", "size", "expected"),
    [
        ("aten::item", 4, Wait.SCALAR),
        ("aten::is_nonzero", 1, Wait.SCALAR),
        ("aten::to", SMALL_READ_BYTES - 1, Wait.SCALAR),
        ("aten::to", SMALL_READ_BYTES, Wait.COPY),
        ("aten::nonzero", 8, Wait.SHAPE),
        ("aten::unique_consecutive", 8, Wait.SHAPE),
    ],
)
def test_the_operator_around_a_wait_names_it(op: str, size: int, expected: Wait) -> None:
    reasons = _reasons(_waiting(op, size))
    assert reasons
    assert set(reasons) == {expected}


def test_the_outermost_operator_of_its_kind_stands_for_the_wait() -> None:
    trace = _waiting("aten::item", 4, inner="aten::_local_scalar_dense").read()
    waits = Analysis(trace).waits
    assert {trace.names[trace.column("name_id")[row]] for row in waits.op} == {"aten::item"}


def test_a_wait_without_an_operator_is_explicit() -> None:
    t = TraceBuilder().step(0, 200).kernel("gemm", 20, 50, launch_at=10)
    t.sync(30, 45, name="cudaDeviceSynchronize")
    assert _reasons(t.kernel("gemm", 120, 10, launch_at=110)) == [Wait.EXPLICIT]


def test_the_wait_after_the_last_launch_is_the_profilers() -> None:
    t = TraceBuilder().step(0, 200).kernel("gemm", 20, 50, launch_at=10)
    assert _reasons(t.sync(30, 45, name="cudaDeviceSynchronize")) == []


def test_waits_inside_the_loader_belong_to_it() -> None:
    t = TraceBuilder().step(0, 200).loader(10, 90)
    t.sync(30, 45)
    assert _reasons(t.kernel("gemm", 120, 10, launch_at=110)) == [Wait.OTHER]


def test_reading_a_tensor_of_the_host_is_no_wait() -> None:
    t = TraceBuilder().step(0, 200).op("aten::item", 10, 5)
    assert _reasons(t.kernel("gemm", 120, 10, launch_at=110)) == []
