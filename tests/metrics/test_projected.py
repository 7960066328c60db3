"""Products on an input that does not change, computed again for each token that is chosen."""

from __future__ import annotations

import pytest

from kinetoscope.metrics.cost import kernel_costs
from kinetoscope.metrics.device_ops import device_ops
from kinetoscope.metrics.projected import Projected, projected_again
from kinetoscope.testing import TraceBuilder

_TEXTS, _LONG, _WIDE = 4, 100, 64
_FIXED, _ONE = [_TEXTS * _LONG, _WIDE], [_TEXTS, _WIDE]
Op = tuple[str, list[object], str]

_KEYS: Op = ("aten::addmm", [[_WIDE], _FIXED, [_WIDE, _WIDE]], "sm90_gemm")
_HEAD: Op = ("aten::mm", [_ONE, [_WIDE, 500]], "sm90_gemm")


def _found(
    *ops: Op, tokens: int = 6, tokens_a_step: int = 6, looked_up: bool = True
) -> list[Projected]:
    """Two keys projected for each token, and other operators before them."""
    t = TraceBuilder()
    for request in range(3):
        for token in range(tokens):
            at = 10_000 * request + 200 * token
            if token % tokens_a_step == 0:
                t.step(at, 200 * tokens_a_step - 1)
            if looked_up:
                t.op("aten::embedding", at + 1, 5, dims=[[500, _WIDE], [_TEXTS], [], [], []],
                     types=["float", "long int"])  # fmt: skip
                t.kernel("indexSelect", at + 5_001, 1, launch_at=at + 3)
            for i, (name, dims, kernel) in enumerate((*ops, _KEYS, _KEYS, _HEAD)):
                types = ["TensorList", "Scalar"] if name == "aten::cat" else None
                t.op(name, at + 10 + 20 * i, 15, dims=dims, types=types)
                t.kernel(kernel, at + 5_010 + 20 * i, 10, launch_at=at + 14 + 20 * i)
            t.op("aten::argmax", at + 180, 15, dims=[[_TEXTS, 500]])
            t.kernel("reduce_kernel", at + 5_180, 10, launch_at=at + 184)
    trace = t.read()
    return list(projected_again(kernel_costs(trace), device_ops(trace)))


def test_products_after_the_first_token_of_each_step_are_for_nothing() -> None:
    (one,) = _found()
    assert (one.rows, one.sequences, one.rounds) == (400, 4, 6)
    # Five of six tokens in each of three requests, two products each.
    assert one.products.size == 30


def test_a_norm_of_the_fixed_input_goes_with_them() -> None:
    norm: Op = ("aten::native_layer_norm", [[_TEXTS, _LONG, _WIDE], [], [_WIDE], [_WIDE]], "norm")
    (one,) = _found(norm)
    assert (one.products.size, one.events.size) == (30, 45)


@pytest.mark.parametrize(
    "op",
    [
        pytest.param(
            ("aten::add_", [[_TEXTS, _LONG, _WIDE], [_TEXTS, 1, _WIDE]], "add"),
            id="each token changes it",
        ),
        pytest.param(
            ("aten::cat", [[[_TEXTS, 99, _WIDE], [_TEXTS, 1, _WIDE]], []], "cat"), id="it grows"
        ),
        pytest.param(("aten::normal_", [_FIXED], "normal"), id="drawn anew"),
        pytest.param(
            ("aten::embedding", [[500, _WIDE], [_TEXTS, _LONG], [], [], []], "lookup"),
            id="looked up anew",
        ),
        pytest.param(
            ("aten::bmm", [[_TEXTS, _LONG, 7], [_TEXTS, 7, _WIDE]], "sm90_gemm"),
            id="made by a product of two results",
        ),
    ],
)
def test_what_may_make_a_new_input_keeps_it_silent(op: Op) -> None:
    assert _found(op) == []


def test_answers_to_single_requests_are_no_rounds() -> None:
    """One token a step: each step may have another input."""
    assert _found(tokens_a_step=1) == []
    assert _found(looked_up=False) == []
    assert _found(tokens=4, tokens_a_step=4) == []
