"""Chains of pointwise kernels: what passes data on, and what does not."""

from __future__ import annotations

import pytest

from kinetoscope.metrics.chains import pointwise_chains
from kinetoscope.metrics.device_ops import device_ops
from kinetoscope.testing import TraceBuilder

_SIZE = [1 << 24]


def _repeated(name: str, dims: list[list[int]]) -> int:
    """Number of chains in two steps of four equal operators."""
    t = TraceBuilder()
    for step in range(2):
        at = step * 1_000.0
        t.step(at, 1_000)
        for i in range(4):
            t.op(name, at + 10 + i * 20, 15, dims=dims)
            t.kernel("elementwise", at + 100 + i * 200, 200, launch_at=at + 14 + i * 20)
    return pointwise_chains(device_ops(t.read())).count


@pytest.mark.parametrize(
    ("name", "dims", "chains"),
    [
        ("aten::mul_", [_SIZE, []], 0),  # weights scaled one by one
        ("aten::lerp", [_SIZE, _SIZE, [], _SIZE], 0),  # averaged one by one, with out=
        ("aten::lerp", [_SIZE, _SIZE, []], 2),  # a new tensor each time: one may follow the other
        ("aten::add_", [_SIZE, _SIZE, []], 2),  # a sum that is built up
    ],
)
def test_the_same_operator_on_one_tensor_after_the_other_is_no_chain(
    name: str, dims: list[list[int]], chains: int
) -> None:
    assert _repeated(name, dims) == chains
