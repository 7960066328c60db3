"""What follows long work on other data runs with cold caches."""

from __future__ import annotations

import numpy as np

from kinetoscope.metrics.intervals import Intervals, union

LONG_NS = 1_000_000
"""Work from this length on counts as long."""
COLD_NS = (250_000, 750_000)
"""Long work on other data leaves cold caches behind. In a recording with 28 ms of NumPy before
each request the first calls of the model took about 0.5 ms of host time more than the same calls
later (the first convolution 0.32 ms, the third 0.1 ms); after a loop of 18 ms the next millisecond
of operators took twice as long as without it. This much goes away, likely and at best."""


def with_cold_start(work: Intervals, cold: int) -> Intervals:
    """The work and the time after its long stretches that cold caches cost."""
    start, end = work
    return union(start, np.where(end - start > LONG_NS, end + cold, end))
