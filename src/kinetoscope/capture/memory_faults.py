"""Page faults of the thread that makes the steps: memory that the system gives anew each time."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Faults:
    """What a thread had so far, or between two moments.

    Attributes:
        minor: page faults that read nothing from a disk.
        system_ns: processor time in the kernel, which serves them (and all other calls).
    """

    minor: int
    system_ns: int

    def __sub__(self, other: Faults) -> Faults:
        return Faults(self.minor - other.minor, self.system_ns - other.system_ns)


def faults_so_far() -> Faults | None:
    """Those of the calling thread since it began; None where the system does not count them."""
    if sys.platform != "linux":
        return None
    import resource

    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return Faults(usage.ru_minflt, round(usage.ru_stime * 1e9))
