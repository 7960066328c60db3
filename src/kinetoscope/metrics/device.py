"""Where the time of each device went: the definitions of the result's `device_timeline`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.intervals import (
    Intervals,
    clip,
    empty,
    measure,
    merge,
    subtract,
    union,
)
from kinetoscope.result import DeviceTimeline
from kinetoscope.trace.kinds import DEVICE_WORK, Kind
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.trace import Trace


@dataclass(frozen=True)
class DeviceActivity:
    """Activity of one device as unions, ns.

    compute: kernels that are not communication, and memsets. comm: communication kernels.
    memcpy: copies. busy: all three.
    """

    device: int
    compute: Intervals
    comm: Intervals
    memcpy: Intervals
    busy: Intervals

    @property
    def exposed_comm(self) -> Intervals:
        """Communication that no compute hides."""
        return subtract(self.comm, self.compute)

    @property
    def exposed_memcpy(self) -> Intervals:
        """Copies that neither compute nor communication hides."""
        return subtract(subtract(self.memcpy, self.compute), self.comm)

    def within(self, low: int, high: int) -> DeviceActivity:
        """The part inside [low, high)."""
        return DeviceActivity(
            self.device,
            clip(self.compute, low, high),
            clip(self.comm, low, high),
            clip(self.memcpy, low, high),
            clip(self.busy, low, high),
        )


def device_activity(trace: Trace) -> tuple[DeviceActivity, ...]:
    """One entry per device that did anything, by device index; () for a host-only trace."""
    rows = rows_of(trace, *DEVICE_WORK)
    if rows.size == 0:
        return ()
    start = trace.column("ts_ns")[rows]
    end = start + trace.column("dur_ns")[rows]
    kind, device = trace.column("kind")[rows], trace.column("device")[rows]
    result = []
    for index in np.unique(device):
        on = device == index

        def of(*kinds: Kind, on: npt.NDArray[np.bool_] = on) -> Intervals:
            mine = on & np.isin(kind, kinds)
            return union(start[mine], end[mine]) if mine.any() else empty()

        compute, comm = of(Kind.KERNEL, Kind.MEMSET), of(Kind.COLLECTIVE)
        memcpy = of(Kind.COPY)
        result.append(
            DeviceActivity(int(index), compute, comm, memcpy, merge(compute, comm, memcpy))
        )
    return tuple(result)


def device_timeline(trace: Trace, rank: int = 0) -> tuple[DeviceTimeline, ...]:
    """The table of SPEC section 4, exact to the nanosecond, over the whole trace."""
    return tuple(_timeline(activity, trace, rank) for activity in device_activity(trace))


def _timeline(activity: DeviceActivity, trace: Trace, rank: int) -> DeviceTimeline:
    # The span counts zero-length events too, so it is taken from the events, not from the union.
    rows = rows_of(trace, *DEVICE_WORK)
    rows = rows[trace.column("device")[rows] == activity.device]
    start = trace.column("ts_ns")[rows]
    span = int((start + trace.column("dur_ns")[rows]).max() - start.min())
    busy = measure(activity.busy)
    return DeviceTimeline(
        rank=rank,
        device=activity.device,
        span_ns=span,
        busy_ns=busy,
        compute_ns=measure(activity.compute),
        comm_ns=measure(activity.comm),
        exposed_comm_ns=measure(activity.exposed_comm),
        memcpy_ns=measure(activity.memcpy),
        exposed_memcpy_ns=measure(activity.exposed_memcpy),
        idle_ns=span - busy,
    )
