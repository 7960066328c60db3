"""Each request is copied from and to memory that is not pinned.

## What it finds
Inference in which copies of at least 64 KiB between the device and pageable memory take a visible
part of the step.

## Why it matters
A pageable copy goes through a buffer of the driver at a third of the link's speed, and the host
waits for it. Both are part of the latency of each request.

## How to fix it
Pinned buffers that are allocated once and filled for each request, copied with `non_blocking=True`;
the next request's copy on a stream of its own.

## Limits
A preview; DL105 reports large copies to the device in any program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.ownership import LARGE_COPY_BYTES
from kinetoscope.metrics.transfers import PAGEABLE, Purpose, transfers
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.data_loading._input import pinned_speed
from kinetoscope.rules.inference._requests import serves
from kinetoscope.units import duration, percent, several, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_URL = "https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html"


class Thresholds(Options, frozen=True):
    """When copies are worth a word."""

    min_share: float = 0.05
    """Their time as a share of the step."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Replay the steps with copies at the speed of pinned memory."""
    if not serves(analysis):
        return
    copies = analysis.get(transfers)
    mine = np.isin(copies.kind, PAGEABLE) & (copies.bytes >= LARGE_COPY_BYTES)
    mine &= copies.of(Purpose.DATA, Purpose.TO_HOST)
    mine &= np.isin(copies.row, analysis.in_window(copies.row))
    rows, ns, nbytes = copies.row[mine], copies.ns[mine], copies.bytes[mine]
    spent = int(ns.sum()) // analysis.steps
    share = spent / max(analysis.step_ns, 1)
    if rows.size == 0 or share < options.min_share:
        return
    speed, _ = pinned_speed(analysis, copies)
    pinned = np.minimum(nbytes / speed * 1e9, ns).astype(np.int64)
    sync = copies.sync[mine & ~copies.of(Purpose.TO_HOST)]
    yield Hit(
        message=(
            f"{several(rows.size / analysis.steps, 'copy', 'copies')} of each request "
            f"({size(int(nbytes.sum()) // analysis.steps)}) from memory that is not pinned: "
            f"{duration(spent)}, {percent(min(share, 1.0))} of the step."
        ),
        evidence=(
            Evidence("copy_time", spent, "ns"),
            Evidence("pinned_copy_time", int(pinned.sum()) // analysis.steps, "ns", "estimated"),
            Evidence("bytes_per_step", int(nbytes.sum()) // analysis.steps, "bytes"),
        ),
        locations=analysis.locations(rows, calls=("to", "cuda", "cpu", "numpy")),
        fix=Fix(
            summary="Copy through pinned buffers that live as long as the server.",
            snippet="staging = torch.empty(shape, pin_memory=True)   # once\n"
            "staging.copy_(request)\nx = staging.to(device, non_blocking=True)",
            reference=_URL,
        ),
        gain=analysis.gain(
            Change(durations=(rows, (ns + pinned) // 2)),
            Change(durations=(rows, pinned)),
            Change(durations=(rows, pinned), unblock=sync[sync >= 0]),
        ),
        confidence=0.7,
        claims=analysis.extent(rows),
    )


def _serving(t: TraceBuilder, kind: str, copy_us: float) -> None:
    for step in range(4):
        at = step * 4_000.0
        t.step(at, 4_000)
        t.op("aten::to", at + 10, copy_us + 40)
        t.copy(kind, 8 << 20, at + 25, copy_us, launch_at=at + 15, launch_dur=copy_us + 15)
        t.kernel("gemm", at + copy_us + 70, 3_900 - copy_us, launch_at=at + copy_us + 60)


def _pageable(t: TraceBuilder) -> None:
    _serving(t, "HtoD Pageable", 1_500)


def _pinned(t: TraceBuilder) -> None:
    _serving(t, "HtoD Pinned", 160)


RULE = Rule(
    code="IN604",
    name="per-request-unpinned-copy",
    class_="memory",
    summary="Each request is copied from and to memory that is not pinned.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches"}),
    evidence="L",
    references=(_URL,),
    examples=(
        Example("8 MiB from pageable memory in each request", _pageable, fires=True),
        Example("8 MiB from pinned memory in each request", _pinned, fires=False),
    ),
    preview=True,
)
