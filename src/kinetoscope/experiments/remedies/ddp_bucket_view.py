"""Gradients as views of the buckets.

Patch point: construction of DistributedDataParallel.
"""

from __future__ import annotations

from kinetoscope.experiments.remedies._ddp import uses_ddp, with_options
from kinetoscope.experiments.remedy import Remedy


def _patch(value: str) -> None:  # noqa: ARG001 - has no parameter
    with_options(gradient_as_bucket_view=True)


REMEDY = Remedy(
    id="ddp-bucket-view",
    title="gradients as views of the buckets",
    tolerance="reordered",
    applies=uses_ddp,
    values=lambda _: ("",),
    patch=_patch,
    snippet=lambda _: "DistributedDataParallel(..., gradient_as_bucket_view=True)",
)
