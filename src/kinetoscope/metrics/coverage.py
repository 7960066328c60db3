"""Is the device timeline complete? Gates every statement about idle time.

A recording may lack device records although the device worked: the profiler lost them, was not
permitted to take them, or dropped them as out of range. Such a trace looks idle and is not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinetoscope.trace.kinds import DEVICE_WORK, Kind
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.trace import IntArray, Trace


@dataclass(frozen=True)
class Coverage:
    """Launches and device events that found each other.

    Attributes:
        launches: calls that must give device work: kernel and graph launches. Copies between
            host buffers and empty memsets leave no device event, so they do not count.
        launches_seen: those with at least one device event.
        events: device events.
        events_linked: those with a launch record.
        sparse_replays: graph launches with less than half of the events of the fullest replay.
    """

    launches: int
    launches_seen: int
    events: int
    events_linked: int
    sparse_replays: int = 0

    @property
    def ratio(self) -> float:
        """Share of launches whose work was recorded; 1 when there are no launches."""
        return self.launches_seen / self.launches if self.launches else 1.0

    @property
    def device_missing(self) -> bool:
        """Launches, but (almost) no device events: the device timeline is missing."""
        return self.launches >= 10 and self.ratio < 0.05

    @property
    def complete(self) -> bool:
        """Enough was recorded to speak about idle time."""
        return self.ratio >= 0.9 and self.sparse_replays == 0


def launch_coverage(trace: Trace) -> Coverage:
    """Count launches with and without device events."""
    rows = rows_of(trace, Kind.LAUNCH, Kind.GRAPH_LAUNCH)
    corr = trace.column("corr")
    rows = rows[corr[rows] >= 0]
    device = rows_of(trace, *DEVICE_WORK)
    launch = trace.links.launch[device]
    counts = np.bincount(launch[launch >= 0], minlength=len(trace)) if device.size else None
    seen = int((counts[rows] > 0).sum()) if counts is not None else 0
    return Coverage(
        launches=int(rows.size),
        launches_seen=seen,
        events=int(device.size),
        events_linked=int((launch >= 0).sum()),
        sparse_replays=_sparse_replays(trace, counts) if counts is not None else 0,
    )


def _sparse_replays(trace: Trace, counts: IntArray) -> int:
    """Replays that recorded far fewer kernels than the fullest replay of the same graph.

    A recording does not say which graph a launch replays. Two replays are of one graph when they
    begin with the same kernel and the smaller one holds no kernel that the larger one lacks.
    """
    graphs = rows_of(trace, Kind.GRAPH_LAUNCH)
    if graphs.size < 3:
        return 0
    device = rows_of(trace, *DEVICE_WORK)
    launch, names = trace.links.launch[device], trace.column("name_id")[device]
    sizes = counts[graphs]
    fullest = graphs[int(sizes.argmax())]
    reference = names[launch == fullest]
    sparse = 0
    for row, size in zip(graphs, sizes, strict=True):
        mine = names[launch == row]
        if 0 < size < 0.7 * sizes.max() and mine[0] == reference[0]:
            sparse += int(np.isin(mine, reference).all())
    return sparse
