"""Does every launch wait for its kernel? The sign of `CUDA_LAUNCH_BLOCKING=1` and its kin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.trace import IntArray, Trace

LONG_KERNEL_NS = 20_000
"""Shorter kernels may end before their launch returns anyway."""


@dataclass(frozen=True)
class Blocking:
    """Launches of kernels that are long enough to tell.

    Attributes:
        launches: rows of the launch calls with a long kernel.
        blocking: those that return only after their kernel has ended.
    """

    launches: IntArray
    blocking: IntArray

    @property
    def share(self) -> float:
        """Part of the launches that block; 0 without launches."""
        return self.blocking.size / self.launches.size if self.launches.size else 0.0


def launch_blocking(trace: Trace) -> Blocking:
    """Compare the return of each launch with the end of its kernel."""
    kernels = rows_of(trace, Kind.KERNEL)
    dur, ts = trace.column("dur_ns"), trace.column("ts_ns")
    kernels = kernels[dur[kernels] >= LONG_KERNEL_NS]
    launch = trace.links.launch[kernels]
    known = (launch >= 0) & (trace.column("kind")[np.maximum(launch, 0)] == Kind.LAUNCH)
    kernels, launch = kernels[known], launch[known]
    waits = ts[launch] + dur[launch] >= ts[kernels] + dur[kernels]
    return Blocking(launch, np.unique(launch[waits]))
