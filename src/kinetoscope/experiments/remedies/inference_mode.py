"""Run inference without recording gradients.

Patch point: the outermost call of a module, which runs under `torch.inference_mode`.
"""

from __future__ import annotations

from kinetoscope.experiments._hooks import TOP
from kinetoscope.experiments.remedy import Facts, Remedy


def _applies(facts: Facts) -> str:
    return "the program trains" if facts.training else ""


def _patch(value: str) -> None:  # noqa: ARG001 - has no parameter
    import torch

    TOP.around.append(torch.inference_mode)


REMEDY = Remedy(
    id="inference-mode",
    title="do not record gradients in inference",
    applies=_applies,
    patch=_patch,
    snippet=lambda _: "with torch.inference_mode():",
)
