"""Let the workers of a DataLoader prepare more batches ahead.

Patch point: construction of a DataLoader with workers. Sets `prefetch_factor`.
"""

from __future__ import annotations

from typing import Any

from kinetoscope.experiments._hooks import at_construction
from kinetoscope.experiments.remedy import Facts, Remedy


def _applies(facts: Facts) -> str:
    if not any(loader.get("num_workers") for loader in facts.loaders):
        return "no DataLoader has workers"
    return ""


def _patch(value: str) -> None:
    from torch.utils.data import DataLoader

    def change(kwargs: dict[str, Any], args: tuple[Any, ...]) -> None:
        if kwargs.get("num_workers") or (len(args) > 5 and args[5]):
            kwargs["prefetch_factor"] = int(value)

    at_construction(DataLoader, change)


REMEDY = Remedy(
    id="prefetch-factor",
    title="let the workers prepare more batches ahead",
    applies=_applies,
    takes="number",
    values=lambda _: ("4", "8"),
    patch=_patch,
    snippet=lambda value: f"DataLoader(..., prefetch_factor={value})",
    general=False,
)
