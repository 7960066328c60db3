"""Tell DDP that the graph never changes.

Patch point: construction of DistributedDataParallel.
"""

from __future__ import annotations

from kinetoscope.experiments.remedies._ddp import uses_ddp, with_options
from kinetoscope.experiments.remedy import Remedy


def _patch(value: str) -> None:  # noqa: ARG001 - has no parameter
    with_options(static_graph=True)


REMEDY = Remedy(
    id="ddp-static-graph",
    title="tell DDP that the graph never changes",
    tolerance="reordered",
    applies=uses_ddp,
    values=lambda _: ("",),
    patch=_patch,
    snippet=lambda _: "DistributedDataParallel(..., static_graph=True)",
)
