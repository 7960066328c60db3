"""A device at another clock is no change of the program."""

from __future__ import annotations

from itertools import starmap

import msgspec
import pytest

from kinetoscope.compare import compare
from kinetoscope.result import Diagnosis
from kinetoscope.result.profile import Cost
from tests.compare.sides import MS, run


def _with_kernels(step_ms: float, *kernels: tuple[str, float, float]) -> Diagnosis:
    """A run whose kernels (name, calls, ms a step) are known."""

    def cost(name: str, calls: float, ms: float) -> Cost:
        return Cost(name=name, calls=calls, device_ns=round(ms * MS))

    made = run(step_ms)
    assert made.profile is not None
    profile = msgspec.structs.replace(made.profile, kernels=tuple(starmap(cost, kernels)))
    return msgspec.structs.replace(made, profile=profile)


def test_the_same_kernels_all_slower_is_the_clock() -> None:
    before = _with_kernels(40, ("gemm", 10, 30), ("copy", 4, 8))
    after = _with_kernels(45, ("gemm", 10, 33.75), ("copy", 4, 9))
    found = compare(before, after)
    assert found.verdict.outcome == "inconclusive"
    assert any("take 12 % longer after" in note for note in found.notes)


@pytest.mark.parametrize(
    "kernels",
    [
        [("gemm", 10, 30), ("copy", 4, 13)],  # one of them grew
        [("gemm", 10, 30), ("copy", 4, 8)],  # none did: the time went elsewhere
        [("gemm", 12, 36), ("copy", 5, 9)],  # more of them
        [("gemm", 10, 26), ("copy", 4, 7)],  # all faster, the step slower
        [("gemm", 10, 60), ("copy", 4, 16)],  # other work under the same names
        [("other", 10, 33.75), ("new", 4, 9)],
    ],
)
def test_anything_else_is_the_program(kernels: list[tuple[str, float, float]]) -> None:
    before = _with_kernels(40, ("gemm", 10, 30), ("copy", 4, 8))
    assert compare(before, _with_kernels(45, *kernels)).verdict.outcome == "slower"


def test_three_runs_a_side_have_measured_the_clock() -> None:
    before = [_with_kernels(40 + d, ("gemm", 10, 30)) for d in (-0.1, 0.0, 0.1)]
    after = [_with_kernels(45 + d, ("gemm", 10, 33.75)) for d in (-0.1, 0.0, 0.1)]
    assert compare(before, after).verdict.outcome == "slower"
