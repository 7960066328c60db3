"""The backward pass computes activations again although memory is left.

## What it finds
Forward operators (`linear`, `conv2d`, `layer_norm`, attention) that run again inside the backward
pass, as activation checkpointing makes them, while the peak of allocated memory stays well below
the device's.

## Why it matters
Checkpointing trades a second forward pass for memory: about a quarter to a third more work for
each checkpointed block. Without need for the memory that is lost time.

## How to fix it
Checkpoint fewer blocks, only as many as the memory asks for, or use selective checkpointing, which
keeps the products and recomputes only cheap operators. `torch.compile` recomputes cheap
operators by itself.

## Limits
How much memory the kept activations take is not recorded: remove checkpointing block by block and
watch `torch.cuda.max_memory_allocated()`. Larger batches may be the better use of the memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import DeviceOps
from kinetoscope.metrics.intervals import Intervals, merge, union
from kinetoscope.metrics.recompute import recomputed_nodes
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import (
    busy_share,
    device_work,
    extent_of,
    per_step_ns,
    places,
)
from kinetoscope.trace.frames import is_recompute_frame
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When recomputation is worth a word."""

    min_share: float = 0.1
    """Share of the busy time in recomputed forward work."""
    memory_below: float = 0.7
    """Peak of allocated memory over the device's, above which the checkpoints are needed."""
    removed: tuple[float, float, float] = (0.5, 1.0, 1.0)
    """Part of the recomputation that memory allows to drop."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find forward work inside the backward pass and replay without it."""
    again = analysis.get(recomputed_nodes)
    if not again.any():
        return
    used = _memory_used(analysis)
    if used is not None and used[0] >= options.memory_below * used[1]:
        return
    work = device_work(analysis)
    node = analysis.trace.links.node[work.rows]
    mine = np.flatnonzero((node >= 0) & again[np.maximum(node, 0)])
    rows = work.rows[mine]
    share = busy_share(analysis, rows)
    if rows.size == 0 or share < options.min_share:
        return
    spent = per_step_ns(analysis, rows)
    room = f"; the peak of memory is {size(used[0])} of {size(used[1])}" if used else ""
    yield Hit(
        message=(
            f"The backward pass computes activations again: {duration(spent)} a step, "
            f"{percent(share)} of the device's busy time{room}."
        ),
        evidence=(
            Evidence("recompute_time", spent, "ns"),
            Evidence("busy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            *((Evidence("memory_peak", used[0], "bytes"),) if used else ()),
        ),
        locations=places(analysis, rows, calls=("checkpoint",), whole_step=True),
        fix=Fix(
            summary="Checkpoint only as many blocks as the memory asks for.",
            snippet="x = checkpoint(block, x, use_reentrant=False) if i < n else block(x)",
            reference="https://docs.pytorch.org/docs/stable/checkpoint.html",
        ),
        gain=analysis.gain(*_changes(analysis, options, again, (work, mine))),
        confidence=0.9 if used else 0.4,
        claims=extent_of(analysis, rows),
        at_most="medium",
    )


def _memory_used(analysis: Analysis) -> tuple[int, int] | None:
    """Peak of allocated memory and the device's memory, bytes; None when not recorded."""
    device, memory = analysis.device, analysis.trace.memory
    if device is None or memory.height == 0:
        return None
    entry = next((d for d in analysis.trace.header.devices if d.id == device.device), None)
    on_device = memory.get_column("device").to_numpy() == device.device
    allocated = memory.get_column("allocated").to_numpy()[on_device]
    if entry is None or not entry.total_memory_bytes or allocated.size == 0:
        return None
    return int(allocated.max()), entry.total_memory_bytes


def _changes(
    analysis: Analysis,
    options: Thresholds,
    again: npt.NDArray[np.bool_],
    found: tuple[DeviceOps, IntArray],
) -> list[Change]:
    """The step without the recomputation."""
    work, mine = found
    host = _host(analysis, again)
    return [
        Change(
            durations=(work.rows[mine], (work.ns[mine] * (1 - part)).astype(np.int64)),
            drop_calls=work.call[mine] if part == 1.0 else None,
            host_cut=host,
            host_cut_factor=part,
        )
        for part in options.removed
    ]


def _host(analysis: Analysis, again: npt.NDArray[np.bool_]) -> Intervals:
    """Host time of the recomputed operators and of checkpointing's own frames around them."""
    tree = analysis.trace.tree
    ops = union(tree.start[again], tree.end[again])
    frames = analysis.matching(is_recompute_frame)
    return merge(ops, analysis.extent(frames))


def _training(t: TraceBuilder, checkpointed: bool) -> None:
    for step in range(4):
        at = step * 4_000
        t.step(at, 3_990)
        t.op("aten::linear", at + 10, 20, dims=[[512, 512], [512, 512]], seq=step * 10 + 1)
        t.kernel("sm90_gemm", at + 60, 1_000, launch_at=at + 14)
        t.backward("AddmmBackward0", at + 100, 200, seq=step * 10 + 1)
        if checkpointed:
            t.op(
                "aten::linear",
                at + 110,
                40,
                dims=[[512, 512], [512, 512]],
                tid=1001,
                seq=step * 10 + 2,
            )
            t.kernel("sm90_gemm", at + 1_060, 1_000, launch_at=at + 120, tid=1001)
        t.op("aten::mm", at + 160, 40, dims=[[512, 512], [512, 512]], tid=1001)
        t.kernel("sm90_gemm", at + 2_060, 1_500, launch_at=at + 170, tid=1001)
        t.sync(at + 310, 3_260)


def _again(t: TraceBuilder) -> None:
    _training(t, checkpointed=True)


def _kept(t: TraceBuilder) -> None:
    _training(t, checkpointed=False)


RULE = Rule(
    code="CP217",
    name="activation-recompute-heavy",
    class_="compute",
    summary="The backward pass computes activations again although memory is left.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "ops"}),
    evidence="TE",
    references=("https://docs.pytorch.org/docs/stable/checkpoint.html",),
    examples=(
        Example("a linear layer computed again in backward", _again, fires=True),
        Example("a backward pass with kept activations", _kept, fires=False),
    ),
)
