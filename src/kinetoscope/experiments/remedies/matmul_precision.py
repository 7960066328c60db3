"""Let float32 products use the tensor cores.

Patch point: `torch.set_float32_matmul_precision`, set before the program starts; a program that
sets it itself wins.
"""

from __future__ import annotations

from kinetoscope.experiments.remedy import GPU_ONLY, Facts, Remedy


def _applies(facts: Facts) -> str:
    if not facts.on_gpu:
        return GPU_ONLY
    if not facts.settings.get("tf32", True):
        return "this device has no TF32"
    if facts.settings.get("matmul_precision") != "highest":
        return f"it is {facts.settings.get('matmul_precision')} already"
    if "float32" not in facts.dtypes:
        return "no parameter is float32"
    return ""


def _patch(value: str) -> None:
    import torch

    torch.set_float32_matmul_precision(value)


REMEDY = Remedy(
    id="matmul-precision",
    title="TF32 for float32 products",
    tolerance="tf32",
    applies=_applies,
    takes=("high", "medium"),
    values=lambda _: ("high",),
    patch=_patch,
    snippet=lambda value: f'torch.set_float32_matmul_precision("{value}")',
)
