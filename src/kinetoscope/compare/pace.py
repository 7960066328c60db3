"""Did the device itself run at another pace? Kernels that the change left alone tell.

Two recordings of one program on one kind of device differ when its clock does: power limit,
temperature, a neighbour. Then the same kernels, called as often, all take longer on one side. In
64 pairs of recordings whose kernels a change left alone these agreed within 2 %; the pairs beyond
were large matrix products at the power limit, by up to 12 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetoscope.result.profile import Cost, Profile

FloatArray = npt.NDArray[np.float64]

COVERED = 0.5
"""Part of the device time of both sides that must lie in kernels that both have."""
SLOWER_CLOCK = 0.02
"""Kernels of one program agree within this from recording to recording (logarithm)."""
MOST = 0.25
"""No clock explains more; then the kernels have other work (logarithm)."""


@dataclass(frozen=True)
class Pace:
    """How long unchanged kernels take.

    Attributes:
        log_ratio: logarithm of time before / time after: above zero when the device is faster
            after.
    """

    log_ratio: float

    @property
    def slower_ratio(self) -> float:
        """How much longer the slower side takes, as a share."""
        return math.exp(abs(self.log_ratio)) - 1


def pace(before: Sequence[Profile], after: Sequence[Profile]) -> Pace | None:
    """Return the pace of the device; None when it is equal, or cannot be told.

    The median over the time in kernels of equal name and number of calls, when most of them
    changed alike.
    """
    a, b = _kernels(before), _kernels(after)
    both = [key for key in a if key in b and a[key] > 0 and b[key] > 0]
    if not both or min(_part(a, both), _part(b, both)) < COVERED:
        return None
    weights = np.array([a[key] + b[key] for key in both])
    ratios = np.log([a[key] / b[key] for key in both])
    low, middle, high = _quantiles(ratios, weights, (0.1, 0.5, 0.9))
    if not SLOWER_CLOCK < abs(middle) < MOST or high - low > abs(middle):
        return None
    return Pace(middle)


def explains(found: Pace, log_speedup: float) -> bool:
    """Whether the pace of the device explains half of a change of the step time or more."""
    same_way = found.log_ratio * log_speedup > 0
    return same_way and abs(found.log_ratio) >= 0.5 * abs(log_speedup)


_Key = tuple[str, float]


def _kernels(side: Sequence[Profile]) -> dict[_Key, float]:
    """Device time a step of each kernel with its number of calls, mean over the runs."""
    times: dict[_Key, float] = {}
    for profile in side:
        for cost in profile.kernels:
            times[_key(cost)] = times.get(_key(cost), 0.0) + cost.device_ns / len(side)
    return times


def _key(cost: Cost) -> _Key:
    return cost.name, round(cost.calls, 1)


def _part(times: dict[_Key, float], keys: Sequence[_Key]) -> float:
    total = sum(times.values())
    return sum(times[key] for key in keys) / total if total > 0 else 0.0


def _quantiles(values: FloatArray, weights: FloatArray, at: Sequence[float]) -> tuple[float, ...]:
    """Weighted quantiles."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return tuple(float(values[order][np.searchsorted(reached, q * (1 - 1e-9))]) for q in at)
