"""Tensors saved for the backward pass travel to the host and back.

## What it finds
Copies to the host in the forward pass and copies of the same sizes to the device in the backward
pass (`torch.autograd.graph.save_on_cpu`, activation offloading), not hidden behind other work.

## Why it matters
The link to the host is about a hundred times slower than the device's memory. From pageable
memory, or on the stream that computes, every copy stops the device for as long as it takes.

## How to fix it
`save_on_cpu(pin_memory=True)`, offload fewer and larger tensors, prefetch on a stream of its own;
or checkpoint these layers: computing them again usually costs less than moving them.

## Limits
Offloading saves memory that may be needed: the gain is that of hiding or avoiding the copies, and
does not say whether the activations fit. Offloaded optimizers are not covered.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import device_ops
from kinetoscope.metrics.intervals import clip, intersect, measure
from kinetoscope.metrics.ownership import LARGE_COPY_BYTES, TO_DEVICE, TO_HOST
from kinetoscope.metrics.transfers import PAGEABLE
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules._inside import nearest_named, owner_of
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.trace.frames import is_offload_frame
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_HOOKS = "https://docs.pytorch.org/docs/stable/autograd.html#torch.autograd.graph.save_on_cpu"


class Thresholds(Options, frozen=True):
    """When offloading is worth a word."""

    min_share: float = 0.05
    """Copies that nothing hides as a share of the step (RULES, MM319)."""
    min_pairs: int = 2
    """Matched pairs a step, when no frame tells that it is offloading."""
    recompute: float = 0.15
    """Time of computing activations again over that of moving them."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Match copies out and back, and replay them hidden or replaced by computing again."""
    there, back, named = _pairs(analysis)
    rows = np.concatenate((there, back))
    if there.size == 0 or analysis.device is None:
        return
    if not named and there.size < options.min_pairs * max(analysis.trace.steps.count, 1):
        return
    inside = analysis.device.within(*analysis.window)
    exposed = intersect(inside.exposed_memcpy, clip(analysis.extent(rows), *analysis.window))
    spent = measure(exposed) // analysis.steps
    share = spent / max(analysis.step_ns, 1)
    if share < options.min_share:
        return
    kind = analysis.trace.column("copy_kind")[rows]
    pageable = bool(np.isin(kind, PAGEABLE).mean() > 0.5)
    nbytes = int(analysis.trace.column("bytes")[there].sum()) // max(analysis.trace.steps.count, 1)
    yield Hit(
        message=(
            f"{size(nbytes)} saved for the backward pass go to the host and back in each step, "
            f"from {'pageable' if pageable else 'pinned'} memory; {duration(spent)} of it "
            f"({percent(min(share, 1.0))} of the step) nothing hides."
        ),
        evidence=(
            Evidence("exposed_copies", spent, "ns"),
            Evidence("bytes_each_way", nbytes, "bytes"),
            Evidence("pairs_per_step", there.size // max(analysis.trace.steps.count, 1), "count"),
        ),
        locations=analysis.locations(there),
        fix=Fix(
            summary="Pin the host's side and offload fewer layers, or checkpoint them instead.",
            snippet="with torch.autograd.graph.save_on_cpu(pin_memory=True):\n"
            "    loss = model(x)  # or torch.utils.checkpoint in the largest layers",
            reference=_HOOKS,
        ),
        gain=analysis.gain(*_changes(analysis, rows, pageable, options)),
        confidence=0.9 if named else 0.4,
        claims=exposed,
    )


def _pairs(analysis: Analysis) -> tuple[IntArray, IntArray, bool]:
    """Copies to the host in the forward pass, those of equal size back, and whether frames tell."""
    work, trace = analysis.get(device_ops), analysis.trace
    kind = trace.column("copy_kind")[work.rows]
    nbytes = trace.column("bytes")[work.rows]
    copies = (trace.column("kind")[work.rows] == Kind.COPY) & (nbytes >= LARGE_COPY_BYTES)
    offload = owner_of(work, nearest_named(trace, is_offload_frame)) >= 0
    out = np.flatnonzero(copies & np.isin(kind, TO_HOST) & ~work.backward & (work.call >= 0))
    home = np.flatnonzero(copies & np.isin(kind, TO_DEVICE) & (work.backward | offload))
    named = bool(offload[out].any())
    if named:
        out = out[offload[out]]
    waiting: dict[int, list[int]] = {}
    there, back = [], []
    events = sorted([(int(i), True) for i in out] + [(int(i), False) for i in home])
    for at, leaves in events:
        same = waiting.setdefault(int(nbytes[at]), [])
        if leaves:
            same.append(at)
        elif same:
            there.append(same.pop())
            back.append(at)
    rows = work.rows
    return rows[np.array(there, dtype=np.int64)], rows[np.array(back, dtype=np.int64)], named


def _changes(
    analysis: Analysis, rows: IntArray, pageable: bool, options: Thresholds
) -> list[Change]:
    """Faster copies at worst; at best the layers are computed again."""
    ns = analysis.trace.column("dur_ns")[rows]
    calls = analysis.trace.links.launch[rows]
    calls = calls[calls >= 0]
    link = analysis.peaks.h2d_gbps if analysis.peaks else None
    nbytes = analysis.trace.column("bytes")[rows]
    pinned = np.minimum(nbytes / link, ns) if pageable and link else ns * 0.9
    again = (ns * options.recompute).astype(np.int64)
    return [
        Change(durations=(rows, pinned.astype(np.int64)), unblock=calls),
        Change(durations=(rows, ((pinned + again) / 2).astype(np.int64)), unblock=calls),
        Change(durations=(rows, again), unblock=calls),
    ]


def _offloading(t: TraceBuilder, copy_us: float) -> None:
    nbytes = 64 << 20
    for step in range(4):
        at = step * 40_000
        t.step(at, 39_900)
        t.python("torch/autograd/graph.py(280): pack_to_cpu", at + 5, copy_us + 40)
        t.copy(
            "DtoH Pageable", nbytes, at + 20, copy_us, launch_at=at + 10, launch_dur=copy_us + 20
        )
        t.op("aten::mm", at + copy_us + 60, 20, dims=[[4096, 4096], [4096, 4096]])
        t.kernel("gemm", at + copy_us + 80, 10_000, launch_at=at + copy_us + 65)
        begin = at + copy_us + 10_100
        t.python("torch/autograd/graph.py(299): unpack_from_cpu", begin, copy_us + 40, tid=1001)
        t.copy(
            "HtoD Pageable",
            nbytes,
            begin + 20,
            copy_us,
            launch_at=begin + 10,
            launch_dur=copy_us + 20,
            tid=1001,
        )
        t.kernel("gemm", begin + copy_us + 60, 5_000, launch_at=begin + copy_us + 50, tid=1001)


def _slow_copies(t: TraceBuilder) -> None:
    _offloading(t, 11_000)


def _small_part(t: TraceBuilder) -> None:
    _offloading(t, 200)


RULE = Rule(
    code="MM319",
    name="saved-tensor-offload-traffic",
    class_="memory",
    summary="Tensors saved for the backward pass travel to the host and back.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches"}),
    evidence="S",
    references=(_HOOKS,),
    examples=(
        Example("64 MiB each way over a slow link", _slow_copies, fires=True),
        Example("copies of 1 % of the step", _small_part, fires=False),
    ),
)
