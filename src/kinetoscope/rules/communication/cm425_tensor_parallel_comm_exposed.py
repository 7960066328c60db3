"""Tensor parallelism exchanges activations while nothing computes.

## What it finds
Collectives of groups of at most eight ranks, with a matrix product or another layer between one
and the next, exposed for at least 10 % of the step.

## Why it matters
Each layer split over ranks ends in an all-reduce that the next layer needs. It cannot run beside
other work by itself, so its whole time counts.

## How to fix it
Sequence parallelism with asynchronous tensor parallelism (symmetric memory), which sends pieces
while the product still computes; fewer ranks per layer; one-shot all-reduce for small messages.

## Limits
How much can be sent in pieces depends on the shapes. Not yet proved by a recording, so off by
default.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.comm import OWNER_DDP, OWNER_FSDP
from kinetoscope.metrics.intervals import Coverage
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.communication._calls import exposed_comm, in_steady_steps, per_step
from kinetoscope.rules.communication._ranges import between_layers
from kinetoscope.rules.communication.cm401_exposed_communication import hide
from kinetoscope.units import duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """What counts as tensor parallel."""

    min_per_step: int = 4
    """Two a layer at least, in forward and backward."""
    max_group: int = 8
    """Tensor parallelism stays within a host."""
    min_share: float = 0.10
    """Exposed time as a share of the step."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find collectives between layers."""
    comm = analysis.comm
    sizes = np.array([m.group_size for m in comm.messages], dtype=np.int64)
    positions = in_steady_steps(analysis)
    if not positions.size or not comm.on_device:
        return
    small = (sizes[comm.message[positions]] > 1) & (
        sizes[comm.message[positions]] <= options.max_group
    )
    positions = positions[small & ~np.isin(comm.owner[positions], (OWNER_DDP, OWNER_FSDP))]
    positions = positions[comm.is_a("all_reduce", "all_gather", "reduce_scatter")[positions]]
    if per_step(analysis, positions) < options.min_per_step:
        return
    if not between_layers(analysis, positions):
        return
    found = exposed_comm(analysis)
    exposed = np.zeros(comm.row.size, dtype=np.int64)
    exposed[positions] = Coverage(found.stretches).between(comm.start, comm.end)[positions]
    ns = int(exposed.sum()) // analysis.steps
    if ns < options.min_share * analysis.step_ns:
        return
    yield Hit(
        message=(
            f"{per_step(analysis, positions)} collectives between the layers take {duration(ns)} "
            "of each step with nothing beside"
            + ("." if found.separated else " (or wait for a peer).")
        ),
        evidence=(
            Evidence("collectives", per_step(analysis, positions), "count"),
            Evidence("exposed_time", ns, "ns"),
        ),
        locations=analysis.locations(comm.row[positions], calls=("all_reduce",)),
        fix=Fix(
            summary="Use sequence parallelism with asynchronous tensor parallelism.",
            snippet=(
                "torch._inductor.config._micro_pipeline_tp = True\n"
                "enable_symm_mem_for_group(group_name)\n"
                "model = torch.compile(model)"
            ),
            reference="https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html",
        ),
        gain=analysis.gain(
            hide(analysis, exposed, 0.0),
            hide(analysis, exposed, 0.3),
            hide(analysis, exposed, 0.7),
        ),
        confidence=0.4,
        at_most="high" if found.separated else "medium",
        claims=found.stretches,
    )


def _steps(t: TraceBuilder, between: int) -> None:
    for i in range(4):
        at = 10_000 * i
        t.step(at, 10_000)
        for k in range(8):
            start = at + 300 + 1_100 * k
            t.kernel("sm90_xmma_gemm_f16", start, 1_090 - between, launch_at=at + 20 + 30 * k)
            t.all_reduce(start + 1_092 - between, between - 4, launch_at=at + 26 + 30 * k)
        t.sync(at + 300, 8_900)


def _exposed(t: TraceBuilder) -> None:
    _steps(t, 400)


def _short(t: TraceBuilder) -> None:
    _steps(t, 40)


RULE = Rule(
    code="CM425",
    name="tensor-parallel-comm-exposed",
    class_="communication",
    summary="Tensor parallelism exchanges activations while nothing computes.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches"}),
    evidence="L",
    references=("https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html",),
    examples=(
        Example("an all-reduce of 0.4 ms after each layer of 0.7 ms", _exposed, True),
        Example("an all-reduce of 36 us after each layer of 1 ms", _short, False),
    ),
    preview=True,
)
