"""How many blocks each kernel was launched with, and how many of them a multiprocessor holds."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from kinetoscope.metrics.cost_args import parse_list
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray, Trace

__all__ = ["LaunchShapes", "launch_shapes"]

FloatArray = npt.NDArray[np.float64]
_WARPS = {"amd": 32}
_USUAL_WARPS = 64
"""Warps that a multiprocessor holds: 64 on V100, A100, H100, B200; 48 on consumer cards. A CDNA
compute unit holds 32 wavefronts."""
_LANES = {"amd": 64}
_USUAL_LANES = 32


@dataclass(frozen=True)
class LaunchShapes:
    """One entry a kernel, in time order; -1 is "not recorded".

    Attributes:
        rows: event-table rows of the kernels.
        blocks: blocks of the grid.
        warps: warps of a block.
        occupancy: estimated achieved occupancy in [0, 1]; 0 is written when it is not known, so
            it reads as -1.
        resident: blocks that a multiprocessor holds at once, from the occupancy of grids that
            fill the device; -1 when that cannot be told.
    """

    rows: IntArray
    blocks: IntArray
    warps: IntArray
    occupancy: FloatArray
    resident: FloatArray

    def per_multiprocessor(self, multiprocessors: int) -> FloatArray:
        """Blocks for each multiprocessor; -1 where the grid was not recorded."""
        return np.where(self.blocks > 0, self.blocks / max(multiprocessors, 1), -1.0)


def launch_shapes(trace: Trace) -> LaunchShapes:
    """The launch shapes of all kernels of a trace."""
    rows = np.flatnonzero(trace.column("kind") == Kind.KERNEL)
    ids = trace.column("launch_id")[rows]
    distinct, which = np.unique(ids, return_inverse=True)
    vendor = trace.header.vendor or ""
    found = [_parse(trace.texts[i] if i >= 0 else "", vendor) for i in distinct]
    table = np.array(found, dtype=np.float64).reshape(-1, 4)[which]
    return LaunchShapes(
        rows=rows,
        blocks=table[:, 0].astype(np.int64),
        warps=table[:, 1].astype(np.int64),
        occupancy=table[:, 2],
        resident=table[:, 3],
    )


def _parse(text: str, vendor: str) -> tuple[float, float, float, float]:
    values: list[Any] = [*parse_list(text), *([None] * 6)][:6]
    grid, block, per_sm, _, _, percent = values
    blocks = _product(grid)
    threads = _product(block)
    warps = -(-threads // _LANES.get(vendor, _USUAL_LANES)) if threads > 0 else -1
    occupancy = percent / 100 if isinstance(percent, int | float) and percent > 0 else -1.0
    resident = -1.0
    if warps > 0 and occupancy > 0 and isinstance(per_sm, int | float):
        held = round(occupancy * _WARPS.get(vendor, _USUAL_WARPS) / warps)
        # A grid that does not fill the device is held whole: its occupancy tells no limit.
        resident = float(held) if 1 <= held <= per_sm else -1.0
    return float(blocks), float(warps), occupancy, resident


def _product(value: object) -> int:
    if not isinstance(value, list) or not all(type(n) is int and n > 0 for n in value):
        return -1
    return prod(value)
