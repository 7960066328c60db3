"""A chain of DataPipes prepares data in the main process, and the device waits.

## What it finds
Stages of a DataPipe (`enumerate(DataPipe)#...` ranges, or their frames) that run in the main
process for a sizeable part of the step, outside any DataLoader.

## Why it matters
Each stage handles sample after sample in Python, with checks of its own at every hand-over, between
two steps of the program. Nothing overlaps with the device.

## How to fix it
DataPipes are not developed any more. Use a map-style data set with a `DataLoader` and workers, or
`torchdata.nodes`. An iterable data set must share its samples among the workers in `__iter__`.

## Limits
A chain inside a `DataLoader` without workers is reported as that. What workers do is not recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import measure, subtract
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.data_loading._input import exposed_ratio, loader_call, loader_work
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.torch_frames import is_datapipe, is_datapipe_frame
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_HANDOVER_NS = 200_000
"""What taking a batch from workers costs the main process."""


class Thresholds(Options, frozen=True):
    """When a chain is worth a word."""

    min_share: float = 0.05
    """Its time as a share of the step, as for DL101."""
    min_exposed: float = 0.5
    """Part of it in which the device is idle."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Add up the outermost stages, and replay the steps without them."""
    rows = analysis.in_steps(_stages(analysis))
    if rows.size == 0:
        return
    loaders = analysis.rows(Kind.LOADER)
    loaders = loaders[~np.isin(loaders, analysis.matching(is_datapipe))]
    work = subtract(analysis.extent(rows), analysis.extent(loaders))
    per_step = measure(work) // analysis.steps_on_host
    share = per_step / max(analysis.step_ns, 1)
    if share < options.min_share or exposed_ratio(analysis, work) < options.min_exposed:
        return
    inside, start, end = loader_work(analysis, rows)
    yield Hit(
        message=(
            f"A chain of DataPipes takes {duration(per_step)} of each step in the main process, "
            f"{percent(min(share, 1.0))} of it."
        ),
        evidence=(
            Evidence("datapipe_time", per_step, "ns"),
            Evidence("datapipe_share", round(min(share, 1.0), 4), "ratio", "derived"),
        ),
        locations=analysis.locations(inside, end - start) or analysis.locations(rows),
        fix=Fix(
            summary="Replace the chain by a map-style data set and a DataLoader with workers, or "
            "by torchdata.nodes.",
            snippet=loader_call(analysis, "dataset", "num_workers=4", "persistent_workers=True"),
            reference="https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading",
        ),
        gain=analysis.gain(
            Change(host_cut=work, host_cut_factor=0.75),
            Change(host_cut=work, extra_host_ns=_HANDOVER_NS),
            Change(host_cut=work),
        ),
        confidence=0.9,
        claims=work,
    )


def _stages(analysis: Analysis) -> IntArray:
    """Outermost ranges and frames of DataPipes."""
    trace, tree = analysis.trace, analysis.trace.tree
    test = (is_datapipe(name) or is_datapipe_frame(name) for name in trace.names)
    flags = np.append(np.fromiter(test, bool, len(trace.names)), False)
    flag = flags[trace.column("name_id")[tree.rows]]
    if not flag.any():
        return tree.rows[:0]
    around = nearest(flag, tree.parent)
    above = np.where(tree.parent >= 0, around[np.maximum(tree.parent, 0)], -1)
    return np.asarray(tree.rows[flag & (above < 0)], dtype=np.int64)


def _training(t: TraceBuilder, preparing: float) -> None:
    for step in range(4):
        at = step * 10_000.0
        t.step(at, 10_000)
        t.annotation("enumerate(DataPipe)#MapperIterDataPipe", at + 5, preparing)
        begin = at + 30 + preparing
        t.kernel("gemm", begin + 10, 9_950 - preparing, launch_at=begin)


def _slow(t: TraceBuilder) -> None:
    _training(t, 7_000)


def _quick(t: TraceBuilder) -> None:
    _training(t, 200)


RULE = Rule(
    code="DL116",
    name="datapipe-or-iterable-overhead",
    class_="data_loading",
    summary="A chain of DataPipes prepares data in the main process while the device waits.",
    check=check,
    options=Thresholds(),
    evidence="S",
    references=("https://docs.pytorch.org/docs/stable/data.html",),
    examples=(
        Example("a stage that takes 70 % of the step", _slow, fires=True),
        Example("a stage that takes 2 % of the step", _quick, fires=False),
    ),
)
