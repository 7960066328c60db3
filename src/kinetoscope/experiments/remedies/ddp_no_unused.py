"""Do not search for unused parameters.

Patch point: construction of DistributedDataParallel.
"""

from __future__ import annotations

from kinetoscope.experiments.remedies._ddp import uses_ddp, with_options
from kinetoscope.experiments.remedy import Remedy


def _patch(value: str) -> None:  # noqa: ARG001 - has no parameter
    with_options(find_unused_parameters=False)


REMEDY = Remedy(
    id="ddp-no-unused-search",
    title="do not search for unused parameters",
    tolerance="reordered",
    applies=uses_ddp,
    values=lambda _: ("",),
    patch=_patch,
    snippet=lambda _: "DistributedDataParallel(..., find_unused_parameters=False)",
)
