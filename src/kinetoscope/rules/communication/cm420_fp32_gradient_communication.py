"""Gradients travel in float32 although the layers compute in half precision.

## What it finds
DDP's or FSDP's gradient collectives of float32 elements in a program whose matrix products run in
bfloat16 or float16, where they take at least 5 % of the step exposed.

## Why it matters
The gradients of a half-precision layer carry no more information than half precision; sent in
float32 they take twice the bytes, and a large message takes twice the time.

## How to fix it
DDP: `register_comm_hook(None, default_hooks.bf16_compress_hook)`. FSDP2:
`MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)`.

## Limits
Sums over very many ranks lose accuracy in bfloat16; compare the loss. The hook adds two casts for
each bucket. Waiting for a late rank does not shrink.
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
from kinetoscope.rules.communication._calls import (
    comm_gain,
    exposed_comm,
    in_steady_steps,
    intrinsic_ns,
)
from kinetoscope.rules.communication.cm401_exposed_communication import hide
from kinetoscope.trace.kinds import Family, Kind
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When a smaller type would help."""

    min_share: float = 0.05
    """Exposed time of these collectives as a share of the step."""
    min_half: float = 0.5
    """Part of the layers' kernel time that runs in half precision."""
    min_bytes: int = 1 << 20
    """Smaller messages cost latency, which no type shortens."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Halve the transfer of float32 gradients."""
    comm = analysis.comm
    positions = _gradients(analysis, options)
    if not positions.size or not comm.on_device or _half_part(analysis) < options.min_half:
        return
    found = exposed_comm(analysis)
    exposed = np.zeros(comm.row.size, dtype=np.int64)
    exposed[positions] = Coverage(found.stretches).between(comm.start, comm.end)[positions]
    ns = int(exposed.sum()) // analysis.steps
    if ns < options.min_share * analysis.step_ns:
        return
    saved = np.minimum(exposed, intrinsic_ns(analysis) // 2)
    total = int(comm.bytes[positions].sum()) // analysis.steps_on_host
    fsdp = bool((comm.owner[positions] == OWNER_FSDP).mean() > 0.5)
    saved_ns = int(saved.sum()) // analysis.steps
    yield Hit(
        message=(
            f"{size(total)} of gradients travel in float32 in each step, while the layers compute "
            f"in half precision; {duration(ns)} of the transfer is exposed"
            + ("." if found.separated else " (or waiting for a peer).")
        ),
        evidence=(
            Evidence("gradients", total, "bytes"),
            Evidence("exposed_time", ns, "ns"),
        ),
        locations=analysis.locations(comm.row[positions], calls=("backward",)),
        fix=_FSDP if fsdp else _DDP,
        gain=comm_gain(
            analysis,
            hide(analysis, saved, 0.5 if found.separated else 0.0),
            hide(analysis, saved, 0.8),
            hide(analysis, saved, 1.0),
            saved_ns=(int(0.8 * saved_ns), saved_ns),
        ),
        confidence=0.7 if found.separated else 0.4,
        at_most="high" if found.separated else "medium",
        claims=analysis.extent(comm.row[positions]),
    )


_DDP = Fix(
    summary="Compress the buckets to bfloat16 for the transfer.",
    snippet=(
        "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n"
        "ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)"
    ),
    reference="https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html",
)
_FSDP = Fix(
    summary="Reduce the gradients in bfloat16.",
    snippet=(
        "policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)\n"
        "fully_shard(block, mp_policy=policy)"
    ),
    reference="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
)


def _gradients(analysis: Analysis, options: Thresholds) -> IntArray:
    """Positions of large float32 reductions that DDP or FSDP issued."""
    comm, positions = analysis.comm, in_steady_steps(analysis)
    single = np.array([m.dtype.lower() == "float" for m in comm.messages], dtype=bool)
    if not single.any():
        return positions[:0]
    mine = single[comm.message] & comm.is_a("all_reduce", "reduce_scatter")
    mine &= np.isin(comm.owner, (OWNER_DDP, OWNER_FSDP)) & (comm.bytes >= options.min_bytes)
    chosen: IntArray = positions[mine[positions]]
    return chosen


def _half_part(analysis: Analysis) -> float:
    """Part of the layers' kernel time whose operators take half-precision inputs."""
    trace = analysis.trace
    rows = analysis.in_window(analysis.rows(Kind.KERNEL))
    family = trace.column("family")[rows]
    rows = rows[np.isin(family, (Family.GEMM, Family.CONV, Family.ATTENTION))]
    op = trace.links.op[rows]
    rows, op = rows[op >= 0], op[op >= 0]
    types = trace.column("types_id")[op]
    half = np.array([_is_half(trace.texts[i]) if i >= 0 else False for i in types], dtype=bool)
    dur = trace.column("dur_ns")[rows]
    return float(dur[half].sum() / dur.sum()) if dur.size and dur.sum() else 0.0


def _is_half(types: str) -> bool:
    return "BFloat16" in types or "Half" in types


_HOOK = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def _steps(t: TraceBuilder, dtype: str) -> None:
    for i in range(4):
        at = 10_000 * i
        t.step(at, 10_000)
        t.op("aten::mm", at + 40, 20, dims=[[64, 64]] * 2, types=["c10::BFloat16"] * 2)
        t.kernel("gemm_bf16", at + 100, 5_000, launch_at=at + 50)
        t.op(_HOOK, at + 65, 25)
        t.all_reduce(at + 5_110, 4_500, elements=64 << 20, dtype=dtype, launch_at=at + 70)
        t.sync(at + 120, 9_500)


def _single(t: TraceBuilder) -> None:
    _steps(t, "Float")


def _half(t: TraceBuilder) -> None:
    _steps(t, "BFloat16")


RULE = Rule(
    code="CM420",
    name="fp32-gradient-communication",
    class_="communication",
    summary="Gradients travel in float32 although the layers compute in half precision.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "shapes"}),
    evidence="S",
    references=("https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html",),
    examples=(
        Example("bfloat16 layers, float32 all-reduce of 256 MiB", _single, True),
        Example("bfloat16 all-reduce", _half, False),
    ),
)
