"""What the remedies of DistributedDataParallel share: they change its construction."""

from __future__ import annotations

from typing import Any

from kinetoscope.experiments._hooks import at_construction
from kinetoscope.experiments.remedy import Facts


def uses_ddp(facts: Facts) -> str:
    """Return why a remedy of DDP does not apply; "" when it does."""
    return "" if facts.ddp or facts.settings.get("ddp") else "the program uses no DDP"


def with_options(**options: Any) -> None:
    """Make every DDP wrapper with these options."""
    from torch.nn.parallel import DistributedDataParallel

    def change(kwargs: dict[str, Any], args: tuple[Any, ...]) -> None:  # noqa: ARG001
        kwargs.update(options)

    at_construction(DistributedDataParallel, change)
