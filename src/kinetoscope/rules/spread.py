"""How far a gain moves because host work takes a different time in each run."""

from __future__ import annotations

import msgspec

from kinetoscope.result import Gain

HOST_WORK = 0.10
"""Spread of work that the host's memory limits (NumPy, pageable copies, allocation, pickling).
Three unprofiled runs of programs that do it, on one machine, lay up to 12 % apart; the recording
is one more run."""


def spread(gain: Gain, part: float = HOST_WORK) -> Gain:
    """Widen the gain of removing time whose length varies by +- `part`.

    With x removed and r left, the speed-up is (r + x) / r, so speed-up - 1 varies as x does.
    """
    low = 1.0 + (gain.low - 1.0) * (1.0 - part)
    high = 1.0 + (gain.high - 1.0) * (1.0 + part)
    return msgspec.structs.replace(gain, low=round(low, 3), high=round(high, 3))
