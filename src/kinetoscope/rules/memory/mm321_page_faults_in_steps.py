"""The host takes the memory of its large tensors from the system again in each step.

## What it finds
A capture whose unprofiled steps take page faults that cost 5 % of the step or more: by what the
kernel took of the stepping thread's time, or by how much quicker the steps became when the faults
ended in the middle of the capture.

## Why it matters
The C library (glibc) maps every block above 128 KiB by itself at first, and gives freed memory
back to the system as soon as it lies at the end of its heap. A program that makes and frees large
tensors on the host in each step then gets new pages each time: the system zeroes them and maps
them one by one, 4 KiB each, for 0.25 µs to 8 µs. Whether a program is in that state may hang on a
single small block at the end of the heap, so the same program can be several times as fast on
another day, and while it is recorded.

## How to fix it
Let the C library keep freed memory, by two variables of the environment; preload tcmalloc, which
keeps it anyway; or make the large tensors once and write into them (`out=`, `copy_`). jemalloc
does not help where tensors are made by `torch.zeros`.

## Limits
Needs a recording by `kinetoscope run` or the Python API on Linux: a trace does not count faults.
The kernel's time holds other calls as well, and in a virtual machine only a part of what a fault
costs. What the end of faults gained is held to 10 µs a fault at most, but a machine that changes
its pace meanwhile is still part of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.result import Evidence, Fix, Gain, Location
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.trace.captured import Half
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_URL = "https://man7.org/linux/man-pages/man3/mallopt.3.html"
_LARGE_BYTES = 128 << 10
"""From this size on glibc maps a block by itself (M_MMAP_THRESHOLD's first value)."""
_FAULT_NS = 10_000
"""No fault without a disk takes longer; more time in the kernel is spent on something else."""

_FEW = 0.05
"""So few of the faults that are left change nothing."""


class Thresholds(Options, frozen=True):
    """When page faults are worth a word."""

    min_share: float = 0.05
    """Cost of the faults as a share of the step."""
    min_faults: int = 64
    """Faults in a step: a quarter of a mebibyte."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Look at the unprofiled steps: the trace may have been recorded after the faults ended."""
    captured = analysis.trace.sidecar
    base = captured.baseline if captured else None
    if base is None or not base.halves:
        return
    first, last, quicker = base.halves[0], base.halves[-1], base.ended_faults_ns > 0
    if (first.minor_faults or 0) < options.min_faults:
        return
    gain = (
        _measured(first, last, base.ended_faults_ns) if quicker else _bounded(analysis, first, last)
    )
    if 1 - 1 / gain.mid < options.min_share:
        return
    yield Hit(
        message=_message(first, last if quicker else None),
        evidence=_evidence(first, last if quicker else None),
        locations=_places(analysis),
        fix=Fix(
            summary="Let the C library keep freed memory, or reuse the large tensors.",
            snippet="MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=4294967296 "
            "python train.py\n"
            "# or: LD_PRELOAD=libtcmalloc_minimal.so.4 python train.py",
            reference=_URL,
        ),
        gain=gain,
        confidence=0.9 if quicker else 0.7,
    )


def _measured(before: Half, after: Half, ended_ns: int) -> Gain:
    """The faults ended while the capture ran: the program itself has shown what that gains.

    Where some went on, the best case is that the fix ends those as well, at as much each.
    """
    step, faults, left = before.step_ns, before.minor_faults or 0, after.minor_faults or 0
    ratio = step / max(step - ended_ns, 1)
    all_ns = min(ended_ns * faults / max(faults - left, 1), max(ended_ns, 0.9 * step))
    best = step / max(step - all_ns, 1) if left >= _FEW * faults else ratio
    return Gain(
        round(1 + (ratio - 1) / 2, 3), round(ratio, 3), round(1.15 * best, 3), basis="measured"
    )


def _bounded(analysis: Analysis, half: Half, last: Half) -> Gain:
    """Time in the kernel, as far as faults can explain it; a busy device may hide all of it.

    Where the faults ended by the last half, what the kernel still takes there is not theirs.
    """
    step = max(half.step_ns, 1)
    kernel = min(half.system_cpu_ns or 0, (half.minor_faults or 0) * _FAULT_NS)
    if (last.minor_faults or 0) < (half.minor_faults or 0) / 2:
        kernel = min(kernel, max((half.system_cpu_ns or 0) - (last.system_cpu_ns or 0), 0))
    likely = min(kernel, max(step - analysis.busy_per_step_ns, 0))
    # A virtual machine's host serves faults as well; the guest sees that time pass and no more.
    missing = max(step - half.process_cpu_ns, 0) if analysis.device is None else 0
    highest = min(likely + missing, (half.minor_faults or 0) * _FAULT_NS, round(0.9 * step))
    low = 1.0 if analysis.device is not None else step / (step - min(likely, 0.9 * step) / 2)
    mid = step / (step - min(likely, 0.9 * step))
    return Gain(
        round(low, 3), round(mid, 3), round(max(step / (step - highest), mid), 3), basis="bound"
    )


def _message(before: Half, after: Half | None) -> str:
    faults = before.minor_faults or 0
    if after is not None:
        return (
            f"Each step takes {count(faults)} page faults for memory that the host takes from the "
            f"system anew. While the program was recorded they fell to "
            f"{count(after.minor_faults or 0)}, and a step from {duration(before.step_ns)} to "
            f"{duration(after.step_ns)}."
        )
    spent = before.system_cpu_ns or 0
    return (
        f"Each step takes {count(faults)} page faults for memory that the host takes from the "
        f"system anew; the kernel takes {duration(spent)} of the step, "
        f"{percent(min(spent / max(before.step_ns, 1), 1.0))} of it."
    )


def _evidence(before: Half, after: Half | None) -> tuple[Evidence, ...]:
    found = [Evidence("page_faults_per_step", before.minor_faults or 0, "count")]
    if before.system_cpu_ns is not None:
        found.append(Evidence("kernel_time_per_step", before.system_cpu_ns, "ns"))
    if after is not None:
        found.append(Evidence("page_faults_after", after.minor_faults or 0, "count"))
        found.append(Evidence("step_after", after.step_ns, "ns"))
    return tuple(found)


def _places(analysis: Analysis) -> tuple[Location, ...]:
    """Where the large blocks of host memory are made, by their bytes."""
    memory, tree = analysis.trace.memory, analysis.trace.tree
    if memory.height == 0:
        return ()
    size = memory.get_column("bytes").to_numpy()
    keep = (size >= _LARGE_BYTES) & (memory.get_column("device").to_numpy() < 0)
    node = tree.innermost_at(
        memory.get_column("thread").to_numpy()[keep].astype(np.int64),
        memory.get_column("ts_ns").to_numpy()[keep],
    )
    rows, weights = tree.rows[node[node >= 0]], size[keep][node >= 0]
    return analysis.locations(rows, weights) if rows.size else ()


def _captured(t: TraceBuilder, faults: int, system_us: int, after: tuple[int, int] | None) -> None:
    half = {
        "steps": 50,
        "step_ns": 10_000_000,
        "process_cpu_ns": 9_900_000,
        "minor_faults": faults,
        "system_cpu_ns": system_us * 1_000,
    }
    halves = [half]
    if after is not None:
        halves.append(half | {"minor_faults": after[0], "step_ns": after[1] * 1_000})
    spread = {"steps": 50, "step_ns": 10_000_000, "low_ns": 9_900_000, "high_ns": 10_100_000}
    t.header(kinetoscope={"version": 1, "baseline": spread | {"halves": halves}})
    for step in range(4):
        at = step * 4_000.0
        t.step(at, 4_000)
        t.op("aten::zeros", at + 10, 400)
        t.op("aten::add", at + 500, 3_400)


def _ended(t: TraceBuilder) -> None:
    _captured(t, 2_900, 2_000, (3, 2_500))


def _goes_on(t: TraceBuilder) -> None:
    _captured(t, 2_900, 2_000, (2_900, 10_000))


def _few(t: TraceBuilder) -> None:
    _captured(t, 12, 300, (9, 10_000))


def _cheap(t: TraceBuilder) -> None:
    _captured(t, 300, 150, None)


RULE = Rule(
    code="MM321",
    name="page-faults-in-steps",
    class_="memory",
    summary="The host takes the memory of its large tensors from the system again in each step.",
    check=check,
    options=Thresholds(),
    evidence="E",
    remedies=("keep-freed-memory",),
    references=(_URL,),
    examples=(
        Example("2,900 faults a step that ended during the capture", _ended, fires=True),
        Example("as many all the time, a fifth of the step in the kernel", _goes_on, fires=True),
        Example("a dozen faults", _few, fires=False),
        Example("300 faults that cost 1.5 % of the step", _cheap, fires=False),
    ),
)
