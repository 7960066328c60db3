"""Let cuDNN try its algorithms and keep the fastest. Hurts where input sizes vary.

Patch point: `torch.backends.cudnn.benchmark`, set before the program starts.
"""

from __future__ import annotations

from kinetoscope.experiments.remedy import GPU_ONLY, Facts, Remedy


def _applies(facts: Facts) -> str:
    if not facts.on_gpu:
        return GPU_ONLY
    if not facts.convolutions:
        return "the model has no convolution"
    return "it is on already" if facts.settings.get("cudnn_benchmark") else ""


def _patch(value: str) -> None:  # noqa: ARG001 - has no parameter
    import torch

    torch.backends.cudnn.benchmark = True


REMEDY = Remedy(
    id="cudnn-benchmark",
    title="let cuDNN choose by measuring",
    tolerance="reordered",
    applies=_applies,
    patch=_patch,
    snippet=lambda _: "torch.backends.cudnn.benchmark = True",
)
