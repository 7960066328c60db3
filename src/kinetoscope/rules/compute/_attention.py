"""What attention takes as fused kernels: shared by the rules about slower forms of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.attention import Attention
from kinetoscope.metrics.device_ops import DeviceOps
from kinetoscope.metrics.hardware import Peaks
from kinetoscope.metrics.intervals import Intervals, union
from kinetoscope.metrics.precision import Dtype, element_size, math_of
from kinetoscope.rules.compute._kernels import KERNEL_FLOOR_NS, device_work, peaks
from kinetoscope.trace.trace import IntArray, Trace

Rates = tuple[float, float, float]
"""Share of the matrix units' peak that fused attention reaches at worst, likely, at best."""
_BACKWARD = 2.5
"""Backward of a fused attention over its forward: five products instead of two."""


@dataclass(frozen=True)
class FusedWork:
    """Device events of attentions.

    Attributes:
        rows: all of them.
        keep: those that become the fused kernels.
        fused: their new durations at worst, likely, at best.
        drop: calls that vanish.
        host: host time that vanishes.
    """

    rows: IntArray
    keep: IntArray
    fused: tuple[IntArray, IntArray, IntArray]
    drop: IntArray
    host: Intervals


def fused_work(analysis: Analysis, rates: Rates, found: tuple[Attention, ...]) -> FusedWork:
    """Device events and host time of each attention, forward and backward apart."""
    work, device = device_work(analysis), peaks(analysis)
    owner = _owner(analysis.trace, work, found)
    keep: list[int] = []
    fused: list[tuple[int, int, int]] = []
    drop: list[IntArray] = []
    for number, attention in enumerate(found):
        for backward in (False, True):
            mine = np.flatnonzero((owner == number) & (work.backward == backward))
            if mine.size == 0:
                continue
            longest = int(mine[work.ns[mine].argmax()])
            keep.append(longest)
            fused.append(_fused_ns(rates, attention, device, int(work.ns[mine].sum()), backward))
            drop.append(work.call[mine[mine != longest]])
    kept = np.array(keep, dtype=np.int64)
    new = np.array(fused, dtype=np.int64).reshape(-1, 3)
    gone = np.concatenate(drop) if drop else kept
    return FusedWork(
        rows=work.rows[owner >= 0],
        keep=work.rows[kept],
        fused=(new[:, 0], new[:, 1], new[:, 2]),
        drop=gone[gone >= 0],
        host=_host_time(analysis.trace, found, work.op[kept]),
    )


def _fused_ns(
    rates: Rates, a: Attention, device: Peaks | None, before: int, backward: bool
) -> tuple[int, int, int]:
    """Time of the fused kernel at worst, likely and at best."""
    if device is None:
        return int(before * 0.7), int(before * 0.4), int(before * 0.2)
    passes = _BACKWARD if backward else 1.0
    flop = 4.0 * a.scores * a.head * passes
    traffic = 2.0 * a.batch * (a.queries + a.keys) * a.head * max(element_size(a.dtype), 2) * passes
    peak = max(device.flop_per_ns(math_of(a.dtype, 0, matrix=True)), 1.0)
    scale = 2.0 if a.dtype is Dtype.FP32 else 1.0  # plain float32 kernels come closer to their peak
    causal = 0.5 if a.masked and a.queries == a.keys else 1.0
    low, mid, high = (
        max(part * flop / (min(rate * scale, 0.8) * peak), traffic / device.achievable_bytes_per_ns)
        for rate, part in zip(rates, (1.0, 1.0, causal), strict=True)
    )
    floor = KERNEL_FLOOR_NS
    return (
        int(min(max(low, floor), before)),
        int(min(max(mid, floor), before)),
        int(min(max(high, floor), before)),
    )


def _owner(trace: Trace, work: DeviceOps, found: tuple[Attention, ...]) -> IntArray:
    """Index of the attention that each device event belongs to; -1: none."""
    anchor = np.maximum(work.anchor, 0)
    known = work.anchor >= 0
    return _inside(trace.tree.thread[anchor], trace.tree.start[anchor], known, found)


def _inside(
    thread: IntArray,
    start: IntArray,
    known: npt.NDArray[np.bool_],
    found: tuple[Attention, ...],
) -> IntArray:
    result = np.full(start.size, -1, dtype=np.int64)
    for lane in {a.thread for a in found}:
        numbers = np.array([i for i, a in enumerate(found) if a.thread == lane])
        low = np.array([found[i].start for i in numbers])
        high = np.array([found[i].end for i in numbers])
        at = np.searchsorted(low, start, side="right") - 1
        safe = np.maximum(at, 0)
        mine = known & (thread == lane) & (at >= 0) & (start < high[safe])
        result[mine] = numbers[safe[mine]]
    return result


def _host_time(trace: Trace, found: tuple[Attention, ...], kept: IntArray) -> Intervals:
    """Host time that goes: forward up to the last product, and all but one backward node."""
    tree, links = trace.tree, trace.links
    start = np.array([a.start for a in found])
    end = np.array([int(tree.start[a.last]) for a in found])
    roots = np.unique(links.backward_root[links.backward_root >= 0])
    source = links.forward[roots] if roots.size else roots
    safe = np.maximum(source, 0)
    owner = _inside(tree.thread[safe], tree.start[safe], source >= 0, found)
    nodes = tree.node_of[kept[kept >= 0]]
    spared = links.backward_root[nodes[nodes >= 0]]
    gone = roots[(owner >= 0) & ~np.isin(roots, spared)]
    return union(np.concatenate((start, tree.start[gone])), np.concatenate((end, tree.end[gone])))
