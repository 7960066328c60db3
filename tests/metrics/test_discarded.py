"""Gradients that are cleared before any optimizer used them: two networks trained in turns."""

from __future__ import annotations

import pytest

from kinetoscope.metrics.discarded import discarded_gradients
from kinetoscope.testing import TraceBuilder

_ENGINE = "autograd::engine::evaluate_function: "
_CRITIC, _PAINTER, _BOTH = [64, 1, 4, 4], [512, 512, 3, 3], [512]
Gradients = list[tuple[list[int], bool]]
"""Shape of each gradient, in the order of the backward pass, and whether it is added to another."""


def _turns(
    first: Gradients,
    second: Gradients,
    *,
    between: tuple[str, list[object]] | None = None,
    lists: tuple[list[object], list[object]] = ([_CRITIC], [_PAINTER]),
    closures: bool = False,
) -> TraceBuilder:
    """Three steps of 10 ms: a backward pass and an optimizer's step for each of two networks.

    A node takes 100 us and its gradient 50 us, one pair every 200 us. With `closures` each
    optimizer's step holds its backward pass as well.
    """
    t = TraceBuilder()
    for step in range(3):
        t.step(step * 10_000, 10_000)
        for turn, gradients in enumerate((first, second)):
            at, seq = step * 10_000 + 5_000 * turn, 1_000 * step + 100 * turn
            if closures:
                t.annotation("Optimizer.step#SGD.step", at + 1, 4_099)
            for i in range(len(gradients)):
                t.op("aten::linear", at + 10 * i, 8, seq=seq + i, dims=[[4, 4], [4, 4]])
            for i, (shape, adds) in enumerate(gradients):
                begin = at + 1_000 + 200 * i
                t.op(f"{_ENGINE}AddmmBackward0", begin, 100, seq=seq + len(gradients) - 1 - i)
                t.op(f"{_ENGINE}torch::autograd::AccumulateGrad", begin + 110, 50)
                t.op("torch::autograd::AccumulateGrad", begin + 112, 40, dims=[shape])
                t.op("aten::add_" if adds else "aten::detach", begin + 115, 20, dims=[shape])
            if between is not None and turn == 0:
                t.op(between[0], at + 3_000, 20, dims=between[1])
            if not closures:
                t.annotation("Optimizer.step#SGD.step", at + 4_000, 100)
            dims, types = [lists[turn], []], ["TensorList", "Scalar"]
            t.op("aten::_foreach_add_", at + 4_010, 50, dims=dims, types=types)
    return t


_THROUGH: Gradients = [(_CRITIC, False), (_PAINTER, True)]
"""The critic's loss reaches the painter: its gradients are added to those of its last step."""
_PAINTS: Gradients = [(_CRITIC, True), (_PAINTER, False)]


@pytest.mark.parametrize("closures", [False, True])
def test_the_pass_through_the_other_network_is_for_nothing(closures: bool) -> None:
    found = discarded_gradients(_turns(_THROUGH, _PAINTS, closures=closures).read())
    assert found is not None
    # From the end of the critic's gradient (1,160 us) to that of the painter's, 200 us later.
    assert found.tails[0].tolist() == [1_160_000, 11_160_000, 21_160_000]
    assert found.tails[1].tolist() == [1_360_000, 11_360_000, 21_360_000]


def test_long_lists_of_tensors_are_not_recorded_and_not_needed() -> None:
    """More than 30 tensors are an empty list: stale sums are what no optimizer uses."""
    found = discarded_gradients(_turns(_THROUGH, _PAINTS, lists=([], [])).read())
    assert found is not None
    # In the first step the painter's gradient has no earlier one that was used.
    assert found.tails[0].tolist() == [11_160_000, 21_160_000]


def test_a_shape_that_both_networks_have_is_told_by_what_it_is_added_to() -> None:
    first: Gradients = [(_CRITIC, False), (_BOTH, False), (_PAINTER, True), (_BOTH, True)]
    second: Gradients = [(_CRITIC, True), (_BOTH, True), (_PAINTER, False), (_BOTH, False)]
    lists: tuple[list[object], list[object]] = ([_CRITIC, _BOTH], [_PAINTER, _BOTH])
    found = discarded_gradients(_turns(first, second, lists=lists).read())
    assert found is not None
    # The critic's own gradients end with the second one, at 1,360 us; the painter's at 1,760 us.
    assert found.tails[0].tolist() == [1_360_000, 11_360_000, 21_360_000]
    assert found.tails[1].tolist() == [1_760_000, 11_760_000, 21_760_000]


@pytest.mark.parametrize(
    ("first", "second", "between"),
    [
        pytest.param([(_CRITIC, False)], _PAINTS, None, id="detached: nothing behind the critic"),
        pytest.param(
            [(_CRITIC, False), (_PAINTER, False)],
            [(_CRITIC, True), (_PAINTER, True)],
            None,
            id="two parts of one loss",
        ),
        pytest.param(_THROUGH, _PAINTS, ("aten::clone", [_PAINTER, []]), id="the gradient is kept"),
        pytest.param(
            _THROUGH, _PAINTS, ("aten::_foreach_norm", [[_PAINTER], []]), id="its norm is taken"
        ),
    ],
)
def test_used_gradients_are_left_alone(
    first: Gradients, second: Gradients, between: tuple[str, list[object]] | None
) -> None:
    assert discarded_gradients(_turns(first, second, between=between).read()) is None


def test_an_optimizer_between_that_has_the_parameter_uses_it() -> None:
    lists: tuple[list[object], list[object]] = ([_CRITIC, _PAINTER], [_PAINTER])
    assert discarded_gradients(_turns(_THROUGH, _PAINTS, lists=lists).read()) is None
