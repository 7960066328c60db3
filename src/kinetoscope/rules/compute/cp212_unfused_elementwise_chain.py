"""A chain of pointwise operators runs as one kernel each.

## What it finds
Three or more consecutive kernels of pointwise operators, casts, norms or reductions over the same
number of elements, each long enough to be bound by memory bandwidth.

## Why it matters
Every kernel of the chain reads its input from device memory and writes its result back. One fused
kernel reads the first input, keeps the rest in registers and writes the last result: a chain of n
kernels becomes up to n times as fast. The host gains as much where it sets the pace: compiled code
calls one kernel instead of n operators, with the Python and the autograd nodes between them.

## How to fix it
`torch.compile` the function or module with the chain. By hand: fused operators (`F.gelu(x,
approximate="tanh")`, `torch.addcmul`, `F.rms_norm`, `F.silu`), or a Triton kernel.

## Limits
Chains of different functions are reported one by one, as functions are compiled one by one.
Tensors that the backward pass needs are written anyway; compilers recompute most of them. Chains
of kernels of a few microseconds are bound by launching: compilation or a CUDA graph helps there
too, for another reason (FW502).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.chains import Chains, pointwise_chains
from kinetoscope.metrics.device_ops import Flags, args_of
from kinetoscope.metrics.intervals import Intervals, merge, union
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.result.finding import Severity
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import (
    busy_share,
    device_work,
    extent_of,
    host_of,
    per_step_ns,
    places,
)
from kinetoscope.trace.kinds import Family
from kinetoscope.trace.op_names import op_family
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When a chain is worth a word."""

    min_share: float = 0.05
    """Share of the busy time in the chains."""
    min_kernel_ns: int = 6_000
    """Mean length of a chain's kernels; shorter ones are bound by launching and start-up."""
    passes: tuple[float, float, float] = (1.5, 1.15, 0.6)
    """Time of the fused kernel over that of the chain's longest kernel; more at worst where many
    operators of the chain take two tensors."""
    host_left: tuple[float, float, float] = (1.4, 0.8, 0.2)
    """What calling the fused kernel costs the host beside the launch that stays, in operators of
    the chain: however long the chain was, compiled code checks its guards and launches one
    kernel."""
    dominant: float = 0.4
    """Share of the busy time below which the finding is at most medium: every eager model has
    some unfused pointwise work, and compiling it gains what the replay says, but it is no fault
    of the program."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find the chains that memory bandwidth binds and replay each as one kernel."""
    chains = pointwise_chains(device_work(analysis))
    if chains.count == 0:
        return
    length = np.bincount(chains.chain, minlength=chains.count)
    good = chains.total_ns() >= options.min_kernel_ns * length
    for mine in _by_function(analysis, chains, good, options):
        yield _hit(analysis, chains, mine, options)


def _by_function(
    analysis: Analysis, chains: Chains, good: Flags, options: Thresholds
) -> list[Flags]:
    """The chains to report together: those of one function, and all others.

    Compiling is done function by function. Where no function alone is worth a word, all of them
    together may be.
    """
    function = _functions(analysis, chains)

    def share(which: Flags) -> float:
        return busy_share(analysis, chains.work.rows[chains.members[which[chains.chain]]])

    groups = [good & (function == name) for name in np.unique(function[good])]
    groups = sorted((g for g in groups if share(g) >= options.min_share), key=lambda g: -share(g))
    if len(groups) <= 1:
        return [good] if share(good) >= options.min_share else []
    rest = good & ~np.logical_or.reduce(groups)
    return [*groups, *([rest] if share(rest) >= options.min_share else [])]


def _functions(analysis: Analysis, chains: Chains) -> IntArray:
    """Name of the user function that most of each chain's time comes from; -1: unknown."""
    tree = analysis.trace.tree
    frame = analysis.locator.frames(chains.work.rows[chains.members])
    ids = analysis.trace.column("name_id")[tree.rows[np.maximum(frame, 0)]].astype(np.int64)
    name = np.where(frame >= 0, ids, -1)
    pairs, which = np.unique(np.stack((chains.chain, name)), axis=1, return_inverse=True)
    time = np.bincount(which.ravel(), weights=chains.work.ns[chains.members])
    result = np.full(chains.count, -1, dtype=np.int64)
    order = np.argsort(time, kind="stable")
    result[pairs[0][order]] = pairs[1][order]  # the longest of each chain is written last
    return result


def _hit(analysis: Analysis, chains: Chains, good: Flags, options: Thresholds) -> Hit:
    total, longest = chains.total_ns(), chains.longest_ns()
    length = np.bincount(chains.chain, minlength=chains.count)
    rows = chains.work.rows[chains.members[good[chains.chain]]]
    share = busy_share(analysis, rows)
    first, others = _split(chains, good)
    drop = _calls(chains, first, others)
    host = merge(host_of(analysis, chains.work, others), _between(analysis, chains, good))
    spent = per_step_ns(analysis, rows)
    left = int(good.sum()) / max(others.size, 1)
    low, mid, high = options.passes
    worst = np.maximum(_worst_passes(chains), low)
    passes = [worst * longest, mid * longest, high * longest]
    passes_now = float(total[good].sum() / max(longest[good].sum(), 1))
    cap: Severity = "critical" if share >= options.dominant else "medium"
    return Hit(
        message=(
            f"Chains of pointwise kernels take {duration(spent)} a step, {percent(share)} of the "
            f"busy time; the longest has {int(length[good].max())} kernels "
            f"({_sequence(chains, good)}). Each reads and writes all of its data."
        ),
        evidence=(
            Evidence("chain_time", spent, "ns"),
            Evidence("busy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("kernels_per_step", _per_step(analysis, rows), "count"),
            Evidence("passes_over_the_data", round(passes_now, 1), "count", "derived"),
        ),
        locations=places(analysis, rows),
        fix=Fix(
            summary="Compile the function or module with the chain into one kernel.",
            snippet="module = torch.compile(module)",
            reference="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
        ),
        gain=analysis.gain(
            *(
                Change(
                    durations=(
                        chains.work.rows[first],
                        np.minimum(fused, total)[good].astype(np.int64),
                    ),
                    drop_calls=drop,
                    host_cut=host,
                    host_cut_factor=max(1.0 - kept_ops * left, 0.0),
                )
                for fused, kept_ops in zip(passes, options.host_left, strict=True)
            )
        ),
        confidence=0.7,
        claims=extent_of(analysis, rows),
        at_most=cap,
    )


_FUSED_PASSES = 2
"""Reading the first tensor and writing the result."""
_LONGEST_PASSES = 3
"""The longest kernel of a chain with operators on two tensors reads both and writes one."""
_MOST_PASSES = 2.0


def _worst_passes(chains: Chains) -> npt.NDArray[np.float64]:
    """Time of each fused kernel over that of the longest one when half of the operators on two
    tensors bring in one that the chain has not read yet."""
    work = chains.work
    two = np.zeros(work.rows.size)
    for group in work.groups(chains.members):
        args = args_of(work.trace, int(work.op[group[0]]))
        sizes = [prod(args.shape(i)) for i in args.tensors()]
        both = sizes.count(max(sizes, default=0)) > 1
        two[group] = both and op_family(work.op_name(int(group[0]))) != Family.COPY
    count = np.bincount(chains.chain, weights=two[chains.members], minlength=chains.count)
    passes = (_FUSED_PASSES + count / 2) / _LONGEST_PASSES
    return np.asarray(np.minimum(passes, _MOST_PASSES), dtype=np.float64)


def _split(chains: Chains, good: Flags) -> tuple[IntArray, IntArray]:
    """Positions of the first event of each good chain, and of all others."""
    starts = np.searchsorted(chains.chain, np.flatnonzero(good), side="left")
    first = chains.members[starts]
    return first, np.setdiff1d(chains.members[good[chains.chain]], first)


def _calls(chains: Chains, first: IntArray, others: IntArray) -> IntArray:
    """Calls that launched the others and nothing else."""
    calls = np.setdiff1d(chains.work.call[others], chains.work.call[first])
    return calls[calls >= 0]


_BETWEEN_NS = 300_000
"""More host time than this between two operators of a chain is work of the program, recorded with
stacks as it may be."""


def _between(analysis: Analysis, chains: Chains, good: Flags) -> Intervals:
    """Host time between the operators of each chain: Python, modules, nodes of autograd.

    Compiled code runs none of it: it calls its kernels from one generated function.
    """
    op = np.maximum(chains.work.op[chains.members], 0)
    start = analysis.trace.column("ts_ns")[op]
    end = start + analysis.trace.column("dur_ns")[op]
    lane = analysis.trace.column("thread")[op]
    next_one = (chains.chain[1:] == chains.chain[:-1]) & (lane[1:] == lane[:-1])
    gap = start[1:] - end[:-1]
    mine = next_one & good[chains.chain[1:]] & (gap > 0) & (gap <= _BETWEEN_NS)
    return union(end[:-1][mine], start[1:][mine])


def _per_step(analysis: Analysis, rows: IntArray) -> int:
    return analysis.in_window(rows).size // analysis.steps


def _sequence(chains: Chains, good: Flags) -> str:
    """Operators of the chain that takes longest."""
    total = np.where(good, chains.total_ns(), -1)
    mine = chains.members[chains.chain == int(total.argmax())]
    names = [chains.work.op_name(i).rstrip("_") for i in mine]
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")


def _chain(t: TraceBuilder, kernel_us: float, products_us: float) -> None:
    shape = [4096, 4096]
    for step in range(4):
        at = step * 4_000
        t.step(at, 3_990)
        for i, name in enumerate(("mul", "add", "tanh", "mul", "sigmoid")):
            t.op(f"aten::{name}", at + 10 + 20 * i, 15, dims=[shape, []])
            t.kernel(
                "vectorized_elementwise_kernel",
                at + 100 + kernel_us * i,
                kernel_us,
                launch_at=at + 14 + 20 * i,
            )
        t.op("aten::mm", at + 120, 15, dims=[shape, shape])
        t.kernel("sm90_gemm", at + 100 + 5 * kernel_us, products_us, launch_at=at + 124)
        t.sync(at + 150, 5 * kernel_us + products_us - 40)


def _long(t: TraceBuilder) -> None:
    _chain(t, 400, 500)


def _minor(t: TraceBuilder) -> None:
    _chain(t, 20, 3_500)


RULE = Rule(
    code="CP212",
    name="unfused-elementwise-chain",
    class_="compute",
    summary="A chain of pointwise operators runs as one kernel each, through device memory.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "shapes"}),
    evidence="T",
    remedies=("compile",),
    references=(
        "https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    ),
    examples=(
        Example("five pointwise kernels of 400 microseconds", _long, fires=True),
        Example("the same chain next to a product of 3.5 ms", _minor, fires=False),
    ),
)
