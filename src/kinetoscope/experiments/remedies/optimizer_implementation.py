"""Update all parameters with few kernels: fused, or one call for many tensors (foreach).

Patch point: construction of the optimizers in `torch.optim` that know the option.
"""

from __future__ import annotations

from typing import Any

from kinetoscope.experiments._hooks import at_construction, optimizer_classes
from kinetoscope.experiments.remedy import Facts, Remedy


def _applies(facts: Facts) -> str:
    if not facts.optimizers:
        return "the program makes no optimizer"
    if all(o.get("fused") for o in facts.optimizers):
        return "the optimizer is fused already"
    if not any(o.get("has_fused") for o in facts.optimizers):
        return "the optimizer knows no fused implementation"
    return ""


def _values(facts: Facts) -> tuple[str, ...]:
    single = any(o.get("foreach") is False for o in facts.optimizers)
    return ("fused", "foreach") if single or not facts.on_gpu else ("fused",)


def _patch(value: str) -> None:
    other = {"fused": "foreach", "foreach": "fused"}[value]

    def change(kwargs: dict[str, Any], args: tuple[Any, ...]) -> None:  # noqa: ARG001
        kwargs[value] = True
        kwargs.pop(other, None)

    for cls in optimizer_classes(value):
        at_construction(cls, change)


REMEDY = Remedy(
    id="optimizer-implementation",
    title="update the parameters with few kernels",
    tolerance="reordered",
    applies=_applies,
    takes=("fused", "foreach"),
    values=_values,
    patch=_patch,
    snippet=lambda value: f"torch.optim.AdamW(..., {value}=True)  # as your optimizer is named",
)
