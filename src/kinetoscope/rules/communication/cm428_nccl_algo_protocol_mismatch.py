"""Large messages run with NCCL's protocol for small ones.

## What it finds
Kernels of NCCL up to 2.17 whose name says `LL` for messages of at least 16 MiB, where they take at
least 2 % of the step exposed.

## Why it matters
The LL protocol sends a flag with every four bytes of data: low latency at half of the bandwidth.
NCCL chooses it for small messages only, unless `NCCL_PROTO` tells it otherwise.

## How to fix it
Remove `NCCL_PROTO` and `NCCL_ALGO` from the environment, or update NCCL.

## Limits
Since NCCL 2.18 the names no longer tell the protocol, so newer recordings give no finding here;
CM405 looks at their bandwidth. A tuner plugin may have its reasons.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.communication._calls import in_steady_steps, per_step
from kinetoscope.rules.communication.cm401_exposed_communication import hide
from kinetoscope.trace.collective_names import nccl_protocol
from kinetoscope.units import duration, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """What does not fit."""

    min_bytes: int = 16 << 20
    """NCCL leaves LL far below this size."""
    min_share: float = 0.02
    """Exposed time of these collectives as a share of the step."""
    saved_part: float = 0.5
    """LL carries as many bytes of flags as of data."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find the protocol in the names and compare it with the size."""
    comm, trace = analysis.comm, analysis.trace
    low = np.array([(nccl_protocol(n) or ("", ""))[1] == "LL" for n in trace.names], dtype=bool)
    positions = in_steady_steps(analysis)
    if not low.any() or not comm.on_device:
        return
    positions = positions[low[trace.column("name_id")[comm.row[positions]]]]
    positions = positions[comm.bytes[positions] >= options.min_bytes]
    exposed = np.zeros(comm.row.size, dtype=np.int64)
    exposed[positions] = comm.exposed[positions]
    ns = int(exposed.sum()) // analysis.steps_on_host
    if ns < options.min_share * analysis.step_ns:
        return
    largest = int(comm.bytes[positions].max())
    yield Hit(
        message=(
            f"{per_step(analysis, positions)} collectives a step of up to {size(largest)} use "
            f"NCCL's LL protocol, meant for small messages; {duration(ns)} of them is exposed."
        ),
        evidence=(
            Evidence("collectives", per_step(analysis, positions), "count"),
            Evidence("largest", largest, "bytes"),
            Evidence("exposed_time", ns, "ns"),
        ),
        locations=analysis.locations(comm.row[positions], calls=("backward",)),
        fix=Fix(
            summary="Remove NCCL_PROTO and NCCL_ALGO from the environment, or update NCCL.",
            snippet="unset NCCL_PROTO NCCL_ALGO",
            reference="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
        ),
        gain=analysis.gain(
            hide(analysis, exposed, 0.0),
            hide(analysis, exposed, 0.5 * options.saved_part),
            hide(analysis, exposed, options.saved_part),
        ),
        confidence=0.7,
        at_most="low",
        claims=analysis.extent(comm.row[positions]),
    )


def _steps(t: TraceBuilder, elements: int) -> None:
    for i in range(4):
        at = 10_000 * i
        t.step(at, 10_000)
        t.kernel("gemm", at + 100, 3_000, launch_at=at + 50)
        t.all_reduce(
            at + 3_200,
            6_000,
            elements=elements,
            launch_at=at + 70,
            kernel="ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)",
        )
        t.sync(at + 100, 9_120)


def _large(t: TraceBuilder) -> None:
    _steps(t, 16 << 20)


def _small(t: TraceBuilder) -> None:
    _steps(t, 1024)


RULE = Rule(
    code="CM428",
    name="nccl-algo-protocol-mismatch",
    class_="communication",
    summary="Large messages run with NCCL's protocol for small ones.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device"}),
    evidence="T",
    references=("https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",),
    examples=(
        Example("64 MiB with RING_LL", _large, True),
        Example("4 KiB with RING_LL", _small, False),
    ),
)
