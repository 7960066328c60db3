"""How many more requests a second a model answers when it gets several at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import device_ops
from kinetoscope.metrics.intervals import clip, measure
from kinetoscope.replay import Change, simulate
from kinetoscope.result import Gain
from kinetoscope.rules._collapse import batched_ns
from kinetoscope.rules._host_work import host_work

_MARGIN = (2.0, 1.0, 0.0)
"""How often the device time of a batch comes on top: its answer is waited for, while single
requests overlap. At worst the host's part grows alike (collecting and handing out)."""


def throughput(analysis: Analysis, sizes: tuple[int, int, int]) -> Gain:
    """Requests a second with batches of these sizes over that of single requests."""
    if analysis.device is None:
        return _host_throughput(analysis, sizes)
    work = analysis.get(device_ops)
    ratios: list[list[float]] = []
    for size, margin, new in zip(sizes, _MARGIN, _batched(analysis, sizes), strict=True):
        change = Change(durations=(work.rows, new.astype(np.int64)))
        device_ns = float(new.sum()) / max(analysis.trace.steps.count, 1)
        found = []
        for deflate in (0.0, 1.0):
            one = simulate(analysis.model, deflate=deflate).step_ns
            many = simulate(analysis.model, change, deflate=deflate).step_ns + margin * device_ns
            found.append(max(size * one / max(many, 1.0), 1.0))
        ratios.append(found)
    low, mid, high = min(ratios[0]), ratios[1][1], max(ratios[2])
    return Gain(round(min(low, mid), 3), round(mid, 3), round(max(high, mid), 3), basis="replay")


def _host_throughput(analysis: Analysis, sizes: tuple[int, int, int]) -> Gain:
    """The same without a device: the work of each request stays, its calls become one."""
    one = analysis.step_ns
    low, mid, high = (
        size * one / (one + (size - 1) * measure(clip(stays, *analysis.window)) / analysis.steps)
        for size, stays in zip(sizes, host_work(analysis), strict=True)
    )
    return Gain(round(min(low, mid), 3), round(mid, 3), round(max(high, mid), 3), basis="replay")


def _batched(analysis: Analysis, sizes: tuple[int, int, int]) -> list[npt.NDArray[np.float64]]:
    """Durations of all device events for batches of these sizes."""
    work = analysis.get(device_ops)
    everything = np.arange(work.rows.size)
    return [
        batched_ns(analysis, work, everything, np.full(everything.size, size))[index]
        for index, size in enumerate(sizes)
    ]
