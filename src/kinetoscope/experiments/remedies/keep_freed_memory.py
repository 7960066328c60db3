"""Let the C library (glibc) keep the memory of freed tensors.

Patch point: two environment variables, set before the process starts. With the first one large
blocks come from the heap and are not mapped one by one, with the second one the end of the heap
stays when it is free.
"""

from __future__ import annotations

import os
import sys

from kinetoscope.experiments.remedy import Facts, Remedy

_KEEP = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
}


def _applies(_: Facts) -> str:
    if sys.platform != "linux":
        return "the variables are those of Linux's C library"
    return "it is on already" if all(name in os.environ for name in _KEEP) else ""


REMEDY = Remedy(
    id="keep-freed-memory",
    title="keep the memory of freed tensors",
    applies=_applies,
    patch=lambda _: None,
    environment=lambda _: _KEEP,
    snippet=lambda _: (
        " ".join(f"{name}={value}" for name, value in _KEEP.items()) + "  # environment"
    ),
    general=False,
)
