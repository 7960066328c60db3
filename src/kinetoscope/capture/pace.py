"""How long a step takes on a device that the host runs ahead of.

The host may issue a hundred steps before the device has done ten: the distance of its step marks
then says nothing about the time that so many steps will take. Two waits for the device, a few
steps apart, do.
"""

from __future__ import annotations

import sys
import time

_STEPS = 6
_LONG_S = 0.3
"""Of steps as long as this, two are enough."""
_LONG_STEPS = 2


class Pace:
    """Measures a few steps between two waits; it costs the program one empty queue."""

    def __init__(self) -> None:
        self._index = 0
        self._start = 0.0

    def measured(self, index: int, period_s: float) -> float | None:
        """The time of a step, seconds; None while it is being measured.

        Args:
            index: of the step that begins now.
            period_s: what the host's marks say, which is right where no device is in use.
        """
        if not _device_in_use():
            return period_s
        if not self._start:
            _synchronize()
            self._index, self._start = index, time.perf_counter()
            return None
        steps = index - self._index
        if steps < (_LONG_STEPS if period_s > _LONG_S else _STEPS):
            return None
        _synchronize()
        return max(period_s, (time.perf_counter() - self._start) / steps)


def _device_in_use() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()


def _synchronize() -> None:
    import torch

    torch.cuda.synchronize()
