"""FSDP shards single layers: many small all-gathers, and host work for each.

## What it finds
FSDP units whose all-gather carries less than 16 MiB, at least 8 of them, in a step whose time
goes into FSDP's own work on the host or into the latency of its collectives.

## Why it matters
Each unit costs an all-gather in forward and in backward, a reduce-scatter, copies in and out of
their buffers, and several hooks in Python. For a small layer all that takes longer than the
layer itself.

## How to fix it
Call `fully_shard` on each block (a transformer layer, a stage of a network) and then on the
model; not on single `Linear` or `Conv2d` layers. Small modules can share a unit: pass a list.

## Limits
A unit is gathered whole, so larger units need more memory at a time. The number of units after
the fix is a guess from the module names: parents of today's units, joined until a unit carries
about 4 MB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.analysis.gains import Triple
from kinetoscope.metrics.comm import OWNER_FSDP
from kinetoscope.metrics.intervals import Intervals, clip, measure, merge, points_in, union
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.communication._calls import (
    fsdp_nodes,
    in_steady_steps,
    launches_of,
    merged,
    on_all_ranks,
    per_step,
)
from kinetoscope.trace.distributed_frames import fsdp_unit
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When units are too small."""

    max_bytes: int = 16 << 20
    """Median all-gather of a unit; transformer blocks carry tens to hundreds of MB."""
    min_units: int = 8
    """Fewer units cost little, whatever their size."""
    enough_bytes: int = 4 << 20
    """A message of this size reaches half of NVLink's bandwidth."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Compare the units with what they cost, and replay the step with fewer."""
    comm = analysis.comm
    positions = _of_fsdp(analysis)
    gathers = positions[comm.is_a("all_gather")[positions]]
    names = _units(analysis)
    units = len(names) or per_step(analysis, gathers) // 2
    if gathers.size == 0 or units < options.min_units:
        return
    nbytes = int(np.median(comm.bytes[gathers]))
    if nbytes >= options.max_bytes:
        return
    wanted = _coarser(names, nbytes * units, options.enough_bytes)
    part = min(wanted / units, 1.0)
    nodes = fsdp_nodes(analysis)
    host = _extent(analysis, nodes)
    each = max(2, round(per_step(analysis, positions) * part))
    cost = measure(host) // analysis.steps_on_host
    yield Hit(
        message=(
            f"FSDP shards {units} units of {size(nbytes)}: {per_step(analysis, positions)} "
            f"collectives in each step, and {duration(cost)} of FSDP's own work on the host."
        ),
        evidence=(
            Evidence("units", units, "count"),
            Evidence("median_unit", nbytes, "bytes"),
            Evidence("collectives", per_step(analysis, positions), "count"),
            Evidence("host_time", cost, "ns"),
        ),
        locations=analysis.locations(comm.row[positions], calls=("fully_shard", "backward")),
        fix=Fix(
            summary=(
                f"Shard whole blocks, about {wanted} {'unit' if wanted == 1 else 'units'} "
                f"instead of {units}, then the model."
            ),
            snippet="for block in model.blocks:\n    fully_shard(block)\nfully_shard(model)",
            reference="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
        ),
        gain=on_all_ranks(analysis, lambda rank: _changes(rank, each, part)),
        confidence=0.9,
        claims=merge(host, analysis.extent(comm.row[positions])),
    )


def _of_fsdp(analysis: Analysis) -> IntArray:
    positions = in_steady_steps(analysis)
    return np.asarray(positions[analysis.comm.owner[positions] == OWNER_FSDP])


def _changes(analysis: Analysis, each: int, part: float) -> Triple:
    """A few large units instead of many: fewer collectives, less of FSDP's own work."""
    positions = _of_fsdp(analysis)
    host = _extent(analysis, fsdp_nodes(analysis))
    change = replace(merged(analysis, positions, each, hidden=0.0), host_cut=host)
    best = merged(analysis, positions, 2, hidden=0.5)
    return (
        replace(change, host_cut_factor=max(0.0, 1.0 - 3 * part)),
        replace(change, host_cut_factor=1.0 - part),
        replace(best, host_cut=host, drop_calls=_all_calls(analysis, host, best)),
    )


def _all_calls(analysis: Analysis, host: Intervals, change: Change) -> IntArray:
    """Everything that FSDP launches, but the collectives that remain; their copies are few."""
    trace = analysis.trace
    device = analysis.times.device_rows
    launch = launches_of(analysis, device)
    inside = launch[points_in(host, trace.column("ts_ns")[launch])]
    times = change.transfers or change.durations
    rows = times[0] if times else launch[:0]
    return np.setdiff1d(inside, launches_of(analysis, rows))


def _units(analysis: Analysis) -> tuple[str, ...]:
    """Names of the sharded units as FSDP2's ranges tell them; "" is the root."""
    found = {fsdp_unit(name) for name in analysis.trace.names}
    return tuple(sorted(name for name in found if name is not None))


def _coarser(names: tuple[str, ...], total_bytes: int, enough: int) -> int:
    """How many units remain when siblings share one, level by level, until they are large."""
    groups = {name for name in names if name}
    while groups:
        groups = {name.rpartition(".")[0] for name in groups} - {""}
        if groups and total_bytes / len(groups) >= enough:
            return len(groups)
    return 1


def _extent(analysis: Analysis, nodes: IntArray) -> Intervals:
    tree = analysis.trace.tree
    return clip(union(tree.start[nodes], tree.end[nodes]), *analysis.times.host_window)


def _shards(t: TraceBuilder, *, units: int, elements: int) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        each = 9_600 // units
        for i in range(units):
            start = at + 100 + each * i
            t.annotation(f"FSDP::all_gather (net.{i})", start, each * 0.9)
            t.all_reduce(
                start + 0.5 * each,
                0.2 * each,
                elements=elements,
                launch_at=start + 5,
                name="_allgather_base",
            )
            t.kernel("gemm", start + 0.8 * each, 0.1 * each, launch_at=start + 0.75 * each)


def _fine(t: TraceBuilder) -> None:
    _shards(t, units=24, elements=1 << 18)


def _blocks(t: TraceBuilder) -> None:
    _shards(t, units=4, elements=1 << 26)


RULE = Rule(
    code="CM418",
    name="fsdp-wrap-granularity",
    class_="communication",
    summary="FSDP shards units so small that handling them takes longer than computing them.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device"}),
    evidence="TS",
    references=("https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",),
    examples=(
        Example("24 units of 1 MB, most of the step in FSDP's ranges", _fine, True),
        Example("4 units of 256 MB", _blocks, False),
    ),
)
