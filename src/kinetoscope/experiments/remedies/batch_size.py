"""Larger batches for inference: throughput against latency.

Patch point: the outermost call of a module. Inputs are repeated along their first dimension and the
outputs cut back, so the program sees what it saw before while the model works on more.
"""

from __future__ import annotations

from typing import Any

from kinetoscope.experiments._hooks import TOP, mapped, tensors_of
from kinetoscope.experiments.remedy import Facts, Remedy


def _applies(facts: Facts) -> str:
    if facts.training:
        return "only for inference: a larger batch is another training"
    return "" if facts.batch else "the first input of the model has no batch dimension"


def _patch(value: str) -> None:
    times = int(value.removeprefix("x"))
    size: list[int] = [0]

    def repeat(args: tuple[Any, ...]) -> tuple[Any, ...]:
        first = next(tensors_of(args), None)
        size[0] = int(first.shape[0]) if first is not None and first.dim() else 0

        def more(tensor: Any) -> Any:
            if tensor.dim() == 0 or tensor.shape[0] != size[0]:
                return tensor
            return tensor.repeat(times, *([1] * (tensor.dim() - 1)))

        return tuple(mapped(list(args), more)) if size[0] else args

    def cut(output: Any) -> Any:
        def fewer(tensor: Any) -> Any:
            mine = tensor.dim() and tensor.shape[0] == times * size[0]
            return tensor[: size[0]] if mine else tensor

        return mapped(output, fewer)

    TOP.arguments.append(repeat)
    TOP.outputs.append(cut)


REMEDY = Remedy(
    id="batch-size",
    title="a larger batch",
    improves="throughput",
    must_not_worsen=("outputs",),
    tolerance="reordered",
    applies=_applies,
    takes=("x2", "x4", "x8", "x16", "x32"),
    values=lambda _: ("x2", "x4", "x8"),
    patch=_patch,
    work=lambda value: float(value.removeprefix("x")),
    snippet=lambda value: f"batch {value.removeprefix('x')} requests together",
)
