"""Drop gradients instead of filling them with zeros.

Patch point: `Optimizer.zero_grad` and `nn.Module.zero_grad`, called with `set_to_none=True`.
"""

from __future__ import annotations

from typing import Any

from kinetoscope.experiments.remedy import Facts, Remedy


def _applies(facts: Facts) -> str:
    return "" if facts.training else "the program does not train"


def _patch(value: str) -> None:  # noqa: ARG001 - has no parameter
    import torch

    for owner in (torch.optim.Optimizer, torch.nn.Module):
        owner.zero_grad = _to_none(owner.zero_grad)


def _to_none(original: Any) -> Any:
    def zero_grad(self: Any, set_to_none: bool = True) -> None:  # noqa: ARG001
        original(self, set_to_none=True)

    return zero_grad


REMEDY = Remedy(
    id="zero-grad",
    title="drop gradients instead of zeroing them",
    applies=_applies,
    patch=_patch,
    snippet=lambda _: "optimizer.zero_grad(set_to_none=True)",
)
