"""Tensors saved for the backward pass travel to the host and back.

## What it finds
Copies to the host in the forward pass and copies of the same sizes to the device in the backward
pass (`torch.autograd.graph.save_on_cpu`, activation offloading), not hidden behind other work.

## Why it matters
The link to the host is about a hundred times slower than the device's memory. From pageable
memory, or on the stream that computes, every copy stops the device for as long as it takes.

## How to fix it
`save_on_cpu(pin_memory=True)`, offload fewer and larger tensors, prefetch on a stream of its own;
or checkpoint these layers: computing them again usually costs less than moving them. Or keep the
tensors on the device, if it has room for them.

## Limits
Offloading saves memory that may be needed. Where what is moved is a tenth of the device's memory at
most, and the peak, if it was recorded, leaves room for it, it is taken to fit, and the likely gain
is that of moving nothing; otherwise that of hiding or avoiding the copies. Offloaded optimizers are
not covered.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import device_ops
from kinetoscope.metrics.growth import growth
from kinetoscope.metrics.intervals import clip, intersect, measure
from kinetoscope.metrics.ownership import LARGE_COPY_BYTES, TO_DEVICE, TO_HOST
from kinetoscope.metrics.transfers import PAGEABLE
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules._inside import extent_of_nodes, nearest_named, owner_of
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import places
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
    small: float = 0.1
    """Share of the device's memory up to which what is moved would surely fit."""
    hooks: tuple[float, float] = (0.8, 1.0)
    """Part of the host time of packing and unpacking that goes where nothing is moved, likely and
    at best."""


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
    room = _room(analysis, nbytes, options)
    yield Hit(
        message=(
            f"{size(nbytes)} saved for the backward pass go to the host and back in each step, "
            f"from {'pageable' if pageable else 'pinned'} memory; {duration(spent)} of it "
            f"({percent(min(share, 1.0))} of the step) nothing hides."
            f"{f' That is {percent(nbytes / room)} of the device memory.' if room else ''}"
        ),
        evidence=(
            Evidence("exposed_copies", spent, "ns"),
            Evidence("bytes_each_way", nbytes, "bytes"),
            Evidence("pairs_per_step", there.size // max(analysis.trace.steps.count, 1), "count"),
        ),
        locations=places(analysis, there, whole_step=True),
        fix=_KEEP if room else _MOVE_LESS,
        gain=analysis.gain(*_changes(analysis, rows, pageable, bool(room), options=options)),
        confidence=0.9 if named else 0.4,
        claims=exposed,
    )


_MOVE_LESS = Fix(
    summary="Pin the host's side and offload fewer layers, or checkpoint them instead.",
    snippet="with torch.autograd.graph.save_on_cpu(pin_memory=True):\n"
    "    loss = model(x)  # or torch.utils.checkpoint in the largest layers",
    reference=_HOOKS,
)
_KEEP = Fix(
    summary="Keep these tensors on the device, it has room for them; where it has not, checkpoint "
    "layers.",
    snippet="loss = model(x)  # without save_on_cpu",
    reference=_HOOKS,
)


def _room(analysis: Analysis, nbytes: int, options: Thresholds) -> int:
    """Size of the device where so many bytes more would fit; 0: it does not show.

    Without a recording of memory a small part of the device is taken to fit.
    """
    device = analysis.device.device if analysis.device is not None else -1
    entries = analysis.trace.header.devices
    capacity = next((d.total_memory_bytes for d in entries if d.id == device), None) or 0
    found = analysis.get(growth)
    used = found.peak if found is not None and found.device == device else 0
    fits = nbytes <= options.small * capacity and used + nbytes <= _FULL * capacity
    return capacity if fits else 0


_FULL = 0.8
"""Share of the device from which on fragments and other processes leave no room."""


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
    analysis: Analysis, rows: IntArray, pageable: bool, room: bool, *, options: Thresholds
) -> list[Change]:
    """Faster copies at worst; at best the layers are computed again, or nothing is moved."""
    ns = analysis.trace.column("dur_ns")[rows]
    calls = analysis.trace.links.launch[rows]
    calls = calls[calls >= 0]
    link = analysis.peaks.h2d_gbps if analysis.peaks else None
    nbytes = analysis.trace.column("bytes")[rows]
    pinned = np.minimum(nbytes / link, ns) if pageable and link else ns * 0.9
    hidden = Change(durations=(rows, pinned.astype(np.int64)), unblock=calls)
    if room:
        return [hidden, *_nothing_moved(analysis, calls, options)]
    again = (ns * options.recompute).astype(np.int64)
    half = ((pinned + again) / 2).astype(np.int64)
    return [
        hidden,
        Change(durations=(rows, half), unblock=calls),
        Change(durations=(rows, again), unblock=calls),
    ]


def _nothing_moved(analysis: Analysis, calls: IntArray, options: Thresholds) -> list[Change]:
    """Without the copies, and without the functions that pack and unpack, where they are seen."""
    work, trace = analysis.get(device_ops), analysis.trace
    hooks = np.flatnonzero(trace.tree.named(is_offload_frame))
    inside = owner_of(work, nearest_named(trace, is_offload_frame)) >= 0
    gone = np.union1d(calls, work.call[inside & (work.call >= 0)])
    host = extent_of_nodes(trace, hooks)
    return [
        Change(drop_calls=gone, unblock=gone, host_cut=host, host_cut_factor=part)
        for part in options.hooks
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
