"""Batches are copied to the device from pageable memory.

## What it finds
Copies named `Memcpy HtoD (Pageable -> Device)`, above 64 KiB, that the device does not hide behind
other work.

## Why it matters
The driver first copies pageable memory into a buffer of its own, piece by piece, at 3 to 12 GB/s;
from pinned memory the device fetches the data itself at the full speed of the link (12, 25 or
50 GB/s on PCIe 3, 4, 5). And the call returns only when the copy is done, `non_blocking=True` or
not, so the host issues no kernels meanwhile and the copy cannot overlap with them.

## How to fix it
`DataLoader(..., pin_memory=True)` and `batch.to(device, non_blocking=True)`. Batches of a type of
your own need a `pin_memory()` method. Data that stays: pin it once. Do not pin inside the
loop (`t.pin_memory().to(...)`): that allocates pinned memory each time and is slower than a plain
copy.

## Limits
The speed from pinned memory is measured when the recording has such copies, else it is what the
link allows. ROCm does not name the kind of memory: there a slow copy that the host waits for counts
as pageable. On systems whose host memory the device addresses directly nothing is gained.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.transfers import Purpose, Transfers, transfers
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Gain
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.data_loading._copies import (
    Mask,
    exposed_copies,
    exposed_share,
    from_pageable,
)
from kinetoscope.rules.data_loading._input import in_window, pinned_speed
from kinetoscope.rules.spread import spread
from kinetoscope.trace.kinds import CopyKind, Kind
from kinetoscope.units import percent, rate, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_SLOW_LINK = 0.6
"""The cautious estimate: pinned copies reach this part of the link's speed, as hosts with several
devices on one switch do."""


class Thresholds(Options, frozen=True):
    """When pageable copies are worth a word."""

    min_share: float = 0.02
    """Exposed copies as a share of the step; RULES: needs exposed time above 2 %."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Compare pageable copies with the speed of pinned ones."""
    copies = analysis.get(transfers)
    speed, measured = pinned_speed(analysis, copies)
    mine = in_window(analysis, copies) & copies.of(Purpose.DATA) & from_pageable(copies, speed)
    if not mine.any():
        return
    exposed = exposed_copies(analysis, copies.row[mine])
    share = exposed_share(analysis, exposed)
    if share < options.min_share:
        return
    nbytes, reached = int(copies.bytes[mine].sum()), _speed(copies, mine)
    named = bool((copies.kind[mine] == CopyKind.H2D_PAGEABLE).all())
    yield Hit(
        message=f"Copies from pageable memory bring {size(nbytes // analysis.steps_on_host)} to "
        f"the device in each step at {rate(reached, 'B')}; nothing hides them, "
        f"{percent(share)} of the step. From pinned memory the link carries {rate(speed, 'B')}.",
        evidence=(
            Evidence("exposed_share", round(share, 4), "ratio"),
            Evidence("bytes_per_step", nbytes // analysis.steps_on_host, "bytes"),
            Evidence("copy_speed", reached, "bytes_per_s"),
            Evidence("pinned_speed", speed, "bytes_per_s", "measured" if measured else "derived"),
        ),
        locations=analysis.locations(
            copies.row[mine], calls=("to", "cuda", "copy_", "send_to_device")
        ),
        fix=_fix(analysis),
        gain=_gain(analysis, copies, mine, speed),
        confidence=0.9 if named else 0.4,
        claims=exposed,
    )


def _fix(analysis: Analysis) -> Fix:
    loader = bool(analysis.rows(Kind.LOADER).size)
    pin = "DataLoader(..., pin_memory=True)" if loader else "batch = batch.pin_memory()  # once"
    return Fix(
        summary="Keep the batches in pinned memory and copy them without blocking.",
        snippet=f"{pin}\nbatch = batch.to(device, non_blocking=True)",
        reference="https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
    )


def _speed(copies: Transfers, which: Mask) -> float:
    return float(copies.bytes[which].sum() / max(int(copies.ns[which].sum()), 1) * 1e9)


def _gain(analysis: Analysis, copies: Transfers, which: Mask, speed: float) -> Gain:
    """Cautious: faster copies that block; likely: full speed, no blocking; at best: hidden."""
    rows, free = copies.row[which], copies.calls(which)
    ns = copies.ns[which]
    pinned = np.minimum(ns, (copies.bytes[which] / speed * 1e9).astype(np.int64))
    slow = np.minimum(ns, (pinned / _SLOW_LINK).astype(np.int64))
    link = int(pinned.sum()) // analysis.steps_on_host
    return spread(
        analysis.gain(
            Change(durations=(rows, slow), unblock=copies.call[which]),
            Change(durations=(rows, pinned), unblock=free),
            Change(durations=(rows, np.zeros_like(rows)), unblock=free, step_floor_ns=link),
        )
    )


def _pageable(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.op("aten::to", at + 10, 4_020)
        t.copy("HtoD Pageable", 24_000_000, at + 30, 4_000, launch_at=at + 20, launch_dur=4_005)
        t.kernel("gemm", at + 4_060, 5_900, launch_at=at + 4_050)


def _pinned(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.op("aten::to", at + 10, 20)
        t.copy("HtoD Pinned", 240_000_000, at + 30, 4_000, launch_at=at + 15)
        t.kernel("gemm", at + 4_060, 5_900, launch_at=at + 40)


RULE = Rule(
    code="DL105",
    name="pageable-h2d-copy",
    class_="data_loading",
    summary="Batches are copied to the device from pageable memory, slowly and blocking the host.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches"}),
    evidence="T",
    remedies=("pin-memory",),
    references=("https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",),
    examples=(
        Example("24 MB at 6 GB/s in front of each step", _pageable, fires=True),
        Example("ten times as much from pinned memory", _pinned, fires=False),
    ),
)
