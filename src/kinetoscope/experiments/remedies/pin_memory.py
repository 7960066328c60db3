"""Put batches into pinned memory, so that copies to the device need no staging.

Patch points: construction of a DataLoader (`pin_memory`), and `Tensor.to` and `Tensor.cuda` of
pinned tensors (`non_blocking`).
"""

from __future__ import annotations

from typing import Any

from kinetoscope.experiments._hooks import at_construction
from kinetoscope.experiments.remedy import GPU_ONLY, Facts, Remedy


def _applies(facts: Facts) -> str:
    if not facts.on_gpu:
        return GPU_ONLY
    if not facts.loaders:
        return "the program makes no DataLoader"
    if all(loader.get("pin_memory") for loader in facts.loaders):
        return "the memory is pinned already"
    return ""


def _patch(value: str) -> None:  # noqa: ARG001 - has no parameter
    import torch
    from torch.utils.data import DataLoader

    def change(kwargs: dict[str, Any], args: tuple[Any, ...]) -> None:
        if len(args) <= 7:
            kwargs["pin_memory"] = True

    at_construction(DataLoader, change)
    for name in ("to", "cuda"):
        setattr(torch.Tensor, name, _without_waiting(getattr(torch.Tensor, name)))


def _without_waiting(move: Any) -> Any:
    def moved(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not tensor.is_cuda and tensor.is_pinned():
            kwargs.setdefault("non_blocking", True)
        return move(tensor, *args, **kwargs)

    return moved


REMEDY = Remedy(
    id="pin-memory",
    title="pin the memory of batches and copy without waiting",
    applies=_applies,
    patch=_patch,
    snippet=lambda _: (
        "DataLoader(..., pin_memory=True); batch = batch.to(device, non_blocking=True)"
    ),
)
