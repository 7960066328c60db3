"""Gradients that are never cleared: which they are, and what of a backward pass is theirs."""

from __future__ import annotations

import pytest

from kinetoscope.metrics.gradients import unused_gradients
from kinetoscope.testing import TraceBuilder

_ENGINE = "autograd::engine::evaluate_function: "
Pass = list[tuple[list[int], bool]]
"""Shape of each gradient, in the order of the backward pass, and whether it is added to another."""

_HEAD, _BODY, _STEM = [10, 512], [512, 512], [64, 3, 7, 7]


def _steps(*passes: Pass, steps: int = 3, zeros: list[object] | None = None) -> TraceBuilder:
    """Steps of 10 ms with backward passes of 2 ms; a node of 100 us and its gradient of 50 us."""
    t = TraceBuilder()
    for step in range(steps):
        t.step(step * 10_000, 10_000)
        for number, gradients in enumerate(passes):
            at, seq = step * 10_000 + 2_000 * number, 1_000 * step + 100 * number
            for i in range(len(gradients)):
                t.op("aten::linear", at + 10 * i, 8, seq=seq + i, dims=[[4, 4], [4, 4]])
            for i, (shape, adds) in enumerate(gradients):
                begin = at + 1_000 + 200 * i
                t.op(f"{_ENGINE}AddmmBackward0", begin, 100, seq=seq + len(gradients) - 1 - i)
                t.op(f"{_ENGINE}torch::autograd::AccumulateGrad", begin + 110, 50)
                t.op("torch::autograd::AccumulateGrad", begin + 112, 40, dims=[shape])
                t.op("aten::add_" if adds else "aten::detach", begin + 115, 20, dims=[shape])
        t.annotation("Optimizer.step#SGD.step", step * 10_000 + 9_000, 100)
        t.op("aten::_foreach_add_", step * 10_000 + 9_010, 50, dims=[[_HEAD]])
        if zeros is not None:
            t.op("aten::_foreach_zero_", step * 10_000 + 9_200, 50, dims=zeros)
    return t


def test_what_follows_the_last_used_gradient_serves_unused_ones_only() -> None:
    found = unused_gradients(_steps([(_HEAD, False), (_BODY, True), (_STEM, True)]).read())
    assert found is not None
    assert (found.nodes.size, found.steps) == (6, 3)
    # From the end of the first gradient to that of the third, 400 us later.
    assert found.tails[0].tolist() == [1_160_000, 11_160_000, 21_160_000]
    assert found.tails[1].tolist() == [1_560_000, 11_560_000, 21_560_000]


def test_unused_gradients_between_used_ones_have_no_tail() -> None:
    found = unused_gradients(_steps([(_HEAD, False), (_BODY, True), (_STEM, False)]).read())
    assert found is not None
    assert found.nodes.size == 3
    assert found.tails[0].size == 0


def test_each_pass_of_a_step_has_its_tail() -> None:
    """Two parts of a batch: the head's gradient is set by the first and added to by the second."""
    parts: tuple[Pass, Pass] = ([(_HEAD, False), (_BODY, True)], [(_HEAD, True), (_BODY, True)])
    found = unused_gradients(_steps(*parts).read())
    assert found is not None
    assert found.nodes.size == 6
    assert found.tails[0].tolist()[:2] == [1_160_000, 3_160_000]
    assert found.tails[1].tolist()[:2] == [1_360_000, 3_360_000]


@pytest.mark.parametrize(
    "passes",
    [
        pytest.param([[(_HEAD, False), (_BODY, False)]], id="all are cleared"),
        pytest.param(
            [[(_HEAD, True), (_BODY, True)]], id="a part of a batch, or filled with zeros"
        ),
        pytest.param(
            [[(_HEAD, False), (_BODY, False)], [(_HEAD, True), (_BODY, True)]],
            id="two parts of a batch",
        ),
        pytest.param([[(_BODY, False), (_BODY, True)]], id="equal shapes"),
    ],
)
def test_used_gradients_are_left_alone(passes: list[Pass]) -> None:
    assert unused_gradients(_steps(*passes).read()) is None


@pytest.mark.parametrize("zeros", [[[_BODY]], [[]]])
def test_gradients_that_zeros_may_go_to_are_used(zeros: list[object]) -> None:
    """Lists of more than thirty tensors are recorded as empty."""
    assert unused_gradients(_steps([(_HEAD, False), (_BODY, True)], zeros=zeros).read()) is None


@pytest.mark.parametrize(
    ("name", "shape", "used"),
    [
        pytest.param("aten::fill_", _BODY, True, id="filled with a number"),
        pytest.param("aten::zeros_like", _BODY, True, id="a new one to add to"),
        pytest.param("aten::zero_", [], False, id="a sum of losses that begins anew"),
    ],
)
def test_gradients_that_are_cleared_otherwise_are_used(
    name: str, shape: list[int], used: bool
) -> None:
    t = _steps([(_HEAD, False), (_BODY, True)])
    for step in range(3):
        t.op(name, step * 10_000 + 9_300, 20, dims=[shape, []])
    assert (unused_gradients(t.read()) is None) is used


def test_what_an_optimizer_works_on_is_used() -> None:
    """Its gradients are set by hand, or it forgot to clear them: either way they are used."""
    assert unused_gradients(_steps([(_BODY, False), (_HEAD, True)]).read()) is None


def test_one_step_does_not_tell() -> None:
    assert unused_gradients(_steps([(_HEAD, False), (_BODY, True)], steps=1).read()) is None
