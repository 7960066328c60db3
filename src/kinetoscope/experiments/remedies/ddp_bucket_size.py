"""Larger buckets for the gradients' all-reduce.

Patch point: construction of DistributedDataParallel.
"""

from __future__ import annotations

from kinetoscope.experiments.remedies._ddp import uses_ddp, with_options
from kinetoscope.experiments.remedy import Remedy


def _patch(value: str) -> None:
    with_options(bucket_cap_mb=int(value))


REMEDY = Remedy(
    id="ddp-bucket-size",
    title="larger buckets for the gradients' all-reduce",
    tolerance="reordered",
    applies=uses_ddp,
    takes="number",
    values=lambda _: ("50", "100"),
    patch=_patch,
    snippet=lambda value: f"DistributedDataParallel(..., bucket_cap_mb={value})",
)
