"""A change to the program, in the terms of the model."""

from __future__ import annotations

from dataclasses import dataclass, field

from kinetoscope.metrics.intervals import Intervals, empty
from kinetoscope.trace.trace import IntArray


@dataclass(frozen=True)
class Change:
    """What a fix does to the recording. All parts may be combined.

    Attributes:
        host_cut: stretches of host time that the fix removes (a union, ns).
        host_cut_factor: which part of `host_cut` goes away, 0..1.
        unblock: rows of calls that no longer wait for the device (the call itself stays, as a
            short one).
        drop_calls: rows of calls that disappear with the device events they launch.
        durations: new duration of device events, as (rows, ns).
        step_floor_ns: the step cannot become shorter than this (loader service time, link time).
        extra_host_ns: host time that the fix adds to each step.
    """

    host_cut: Intervals = field(default_factory=empty)
    host_cut_factor: float = 1.0
    unblock: IntArray | None = None
    drop_calls: IntArray | None = None
    durations: tuple[IntArray, IntArray] | None = None
    step_floor_ns: int = 0
    extra_host_ns: int = 0
