"""Load batches in worker processes that stay.

Patch point: construction of a DataLoader. Sets `num_workers`, and with it `persistent_workers` and
`prefetch_factor`; a loader whose batch order the program relies on keeps it, as the sampler runs in
the main process either way. Random augmentation draws other numbers in a worker, so losses are
compared on average.
"""

from __future__ import annotations

import math
from typing import Any

from kinetoscope.experiments._hooks import at_construction
from kinetoscope.experiments.remedy import Facts, Remedy


def _applies(facts: Facts) -> str:
    if not facts.loaders:
        return "the program makes no DataLoader"
    if all(loader.get("iterable") for loader in facts.loaders):
        return "an IterableDataset must be split over workers by the program itself"
    return ""


def _values(facts: Facts) -> tuple[str, ...]:
    now = max(int(loader.get("num_workers") or 0) for loader in facts.loaders)
    wanted = [n for n in (2, 4, 8, 16) if n <= max(2 * facts.cores, 2) and n > now]
    return tuple(str(n) for n in wanted[:3])


def _most(value: str, facts: Facts) -> float:
    """As many batches at a time as workers, where the main process loads one after the other."""
    alone = not any(int(loader.get("num_workers") or 0) for loader in facts.loaders)
    return float(value) if alone else math.inf


def _patch(value: str) -> None:
    from torch.utils.data import DataLoader, IterableDataset

    def change(kwargs: dict[str, Any], args: tuple[Any, ...]) -> None:
        dataset = kwargs.get("dataset", args[0] if args else None)
        if len(args) > 5 or isinstance(dataset, IterableDataset):
            return  # the number was given by position, or each worker would load everything
        kwargs["num_workers"] = int(value)
        kwargs["persistent_workers"] = True
        kwargs.setdefault("prefetch_factor", 2)

    at_construction(DataLoader, change)


REMEDY = Remedy(
    id="dataloader-workers",
    title="load batches in worker processes that stay",
    tolerance="statistical",
    must_not_worsen=("loss", "outputs"),
    applies=_applies,
    takes="number",
    values=_values,
    patch=_patch,
    most=_most,
    snippet=lambda value: f"DataLoader(..., num_workers={value}, persistent_workers=True)",
)
