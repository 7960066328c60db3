"""Whether a recording shows training."""

from __future__ import annotations

from kinetoscope.trace.frames import is_training_mark
from kinetoscope.trace.trace import Trace


def trains(trace: Trace) -> bool:
    """Does the recording contain a backward pass or an optimizer's step?"""
    return any(is_training_mark(name) for name in trace.names)
