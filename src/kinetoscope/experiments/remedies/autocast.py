"""Run the model in a 16-bit type where that is safe.

Patch point: the outermost call of a module, which runs under `torch.autocast`; its floating-point
outputs become float32 again, so that the loss is computed as before. float16 is offered to
inference only, as training in it needs a gradient scaler.
"""

from __future__ import annotations

from typing import Any

from kinetoscope.experiments._hooks import TOP, mapped
from kinetoscope.experiments.remedy import Facts, Remedy


def _applies(facts: Facts) -> str:
    if facts.autocast:
        return "the program uses autocast already"
    if "float32" not in facts.dtypes:
        return "no parameter is float32"
    return ""


def _values(facts: Facts) -> tuple[str, ...]:
    return ("bfloat16",) if facts.training or not facts.on_gpu else ("bfloat16", "float16")


def _patch(value: str) -> None:
    import torch

    dtype = getattr(torch, value)
    device: list[str] = []

    def first(module: Any) -> None:
        device.append(str(next(module.parameters()).device.type))

    def widen(tensor: Any) -> Any:
        return tensor.float() if tensor.dtype == dtype else tensor

    TOP.first.append(first)
    TOP.around.append(lambda: torch.autocast(device[-1], dtype=dtype))
    TOP.outputs.append(lambda output: mapped(output, widen))


REMEDY = Remedy(
    id="autocast",
    title="16-bit arithmetic where it is safe",
    tolerance="bf16",
    applies=_applies,
    takes=("bfloat16", "float16"),
    values=_values,
    patch=_patch,
    snippet=lambda value: (
        f"with torch.autocast(device.type, dtype=torch.{value}):  # model and loss"
    ),
)
