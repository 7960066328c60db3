"""Keep the worker processes of a DataLoader between epochs.

Patch point: construction of a DataLoader with workers. Sets `persistent_workers`.
"""

from __future__ import annotations

from typing import Any

from kinetoscope.experiments._hooks import at_construction
from kinetoscope.experiments.remedy import Facts, Remedy


def _applies(facts: Facts) -> str:
    with_workers = [loader for loader in facts.loaders if loader.get("num_workers")]
    if not with_workers:
        return "no DataLoader has workers"
    if all(loader.get("persistent_workers") for loader in with_workers):
        return "the workers stay already"
    return ""


def _patch(value: str) -> None:  # noqa: ARG001 - has no parameter
    from torch.utils.data import DataLoader

    def change(kwargs: dict[str, Any], args: tuple[Any, ...]) -> None:
        if kwargs.get("num_workers") or (len(args) > 5 and args[5]):
            kwargs["persistent_workers"] = True

    at_construction(DataLoader, change)


REMEDY = Remedy(
    id="persistent-workers",
    title="keep the workers of a DataLoader between epochs",
    tolerance="statistical",
    applies=_applies,
    patch=_patch,
    snippet=lambda _: "DataLoader(..., persistent_workers=True)",
)
