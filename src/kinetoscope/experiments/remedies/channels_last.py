"""Keep images with the channels innermost, as convolution kernels want them.

Patch point: before the first outermost call of a module its parameters change their layout; inputs
of four dimensions change it at each call.
"""

from __future__ import annotations

from typing import Any

from kinetoscope.experiments._hooks import TOP, mapped
from kinetoscope.experiments.remedy import Facts, Remedy


def _applies(facts: Facts) -> str:
    return "" if facts.convolutions else "the model has no 2-d convolution"


def _patch(value: str) -> None:  # noqa: ARG001 - has no parameter
    import torch

    def change(tensor: Any) -> Any:
        if tensor.dim() != 4:
            return tensor
        return tensor.contiguous(memory_format=torch.channels_last)

    TOP.first.append(lambda module: module.to(memory_format=torch.channels_last))
    TOP.arguments.append(lambda args: mapped(args, change))


REMEDY = Remedy(
    id="channels-last",
    title="channels innermost in memory",
    tolerance="reordered",
    applies=_applies,
    patch=_patch,
    snippet=lambda _: (
        "model = model.to(memory_format=torch.channels_last)\n"
        "images = images.to(memory_format=torch.channels_last)"
    ),
)
