"""Data moves without need: from the device to the host and back, or from the device to itself.

## What it finds
*Round trips*: a tensor is copied to the host, worked on there, and copied back within the same
step (`.cpu().numpy()` ... `.to(device)`). *Copies on the device*: `Memcpy DtoD`, which `clone()`,
`copy_()` and `contiguous()` make of whole tensors, for a sizeable part of the device's time.
*Windows*: a `cat` that copies all of a tensor to shift it and add a little.

## Why it matters
A round trip waits until the device has finished all that was queued, moves the data twice over a
link that is a hundred times slower than the device's memory, and leaves the device idle while the
host works. A copy on the device reads and writes every byte and computes nothing.

## How to fix it
Do the step on the device: most of NumPy has a counterpart in torch under the same name (`clip`,
`sort`, `percentile` as `quantile`). Where the host must see the data, fetch it late and do not
wait for it. For copies on the device: update in place (`lerp_`, `torch._foreach_*`), use views,
write into a buffer that exists (`out=`), drop `clone()` before something that copies anyway. A
window becomes a ring buffer (`data[:, at] = new; at = (at + 1) % room`).

## Limits
A round trip is recognised by sizes that agree within a factor of two and by order; that the data
are the same is not recorded. Which copies on the device are needed is not recorded either: half
of them is the cautious estimate. Copies that FSDP and DDP make are theirs, tensors that grow by
`cat` are MM316's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Intervals, clip, measure, merge, union
from kinetoscope.metrics.ownership import round_trips
from kinetoscope.metrics.transfers import Transfers, extent_of, transfers
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.memory._moved import moved_by_cat
from kinetoscope.rules.spread import spread
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.distributed_frames import is_distributed_copy
from kinetoscope.trace.kinds import CopyKind, Kind
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_LAUNCH_NS = 10_000


class Thresholds(Options, frozen=True):
    """When moving data is worth a word."""

    min_round_trip: float = 0.02
    """Time from the call that fetches to the call that sends back, as a share of the step."""
    min_device_copies: float = 0.05
    """Copies on the device as a share of the step; the border of TraceLens."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Look for round trips, then for copies on the device."""
    yield from _round_trips(analysis, options)
    yield from _moving_cats(analysis, options)
    yield from _device_copies(analysis, options)


def _round_trips(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    copies = analysis.get(transfers)
    there, back = _pairs(analysis, copies)
    if there.size == 0:
        return
    spent = _host_time(analysis, copies, there, back)
    share = measure(spent) / (analysis.step_ns * analysis.steps_on_host)
    if share < options.min_round_trip:
        return
    both = np.union1d(there, back)
    flag = np.zeros(copies.row.size, dtype=bool)
    flag[both] = True
    calls = copies.calls(flag)
    extra = _LAUNCH_NS * -(-there.size // analysis.steps_on_host)
    nbytes = int(copies.bytes[there].sum())
    work = measure(_on_host(copies, back)) // analysis.steps_on_host
    yield Hit(
        message=f"{size(nbytes // analysis.steps_on_host)} go to the host and back to the device "
        f"in each step; the host spends {duration(measure(spent) // analysis.steps_on_host)} on "
        f"it ({percent(min(share, 1.0))} of the step), {duration(work)} between the two copies.",
        evidence=(
            Evidence("round_trip_share", round(min(share, 1.0), 4), "ratio"),
            Evidence("bytes_per_step", nbytes // analysis.steps_on_host, "bytes"),
            Evidence("round_trips", int(there.size), "count"),
            Evidence("host_work_between", work, "ns"),
        ),
        locations=analysis.locations(
            copies.row[both], calls=("cpu", "numpy", "to", "cuda", "from_numpy")
        ),
        fix=Fix(
            summary="Do the work between the two copies on the device: torch has NumPy's "
            "functions, mostly under the same name.",
            snippet="h = h.clamp(-1, 1)  # in place of torch.from_numpy(np.clip(h.cpu().numpy(), "
            "-1, 1)).to(device)",
            reference="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
            "#avoid-unnecessary-cpu-gpu-synchronization",
        ),
        gain=spread(
            analysis.gain(
                Change(
                    host_cut=spent, host_cut_factor=0.9, drop_calls=calls, extra_host_ns=2 * extra
                ),
                Change(host_cut=spent, drop_calls=calls, extra_host_ns=extra),
            )
        ),
        confidence=0.9 if analysis.trace.steps.source == "profiler_step" else 0.7,
        claims=merge(spent, analysis.extent(copies.row[both])),
    )


def _pairs(analysis: Analysis, copies: Transfers) -> tuple[IntArray, IntArray]:
    """Positions of the two halves of each round trip in the steady steps."""
    at = {int(row): i for i, row in enumerate(copies.row)}
    pairs = [(at[a], at[b]) for a, b in round_trips(analysis.trace)]
    there, back = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    low, high = analysis.times.host_window
    inside = (copies.call[there] >= 0) & (copies.call[back] >= 0)
    inside &= (copies.work_end[there] >= low) & (copies.work_end[there] < high)
    return there[inside], back[inside]


def _on_host(copies: Transfers, back: IntArray) -> Intervals:
    return union(copies.work_start[back], copies.work_end[back])


def _host_time(analysis: Analysis, copies: Transfers, there: IntArray, back: IntArray) -> Intervals:
    """Both copies' operators and the host work before the copy back."""
    both = np.concatenate((there, back))
    owner = np.where(copies.op >= 0, copies.op, copies.call)[both]
    return merge(extent_of(analysis.trace, owner), _on_host(copies, back))


def _device_copies(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    trace = analysis.trace
    rows = analysis.in_window(analysis.rows(Kind.COPY))
    rows = rows[trace.column("copy_kind")[rows] == CopyKind.D2D]
    rows = rows[~_distributed(analysis, rows)]
    spent = analysis.extent(rows)
    total = analysis.step_ns * analysis.steps
    share = measure(clip(spent, *analysis.window)) / total
    if rows.size == 0 or share < options.min_device_copies:
        return
    ops = _operators(analysis, rows)
    dur, launch = trace.column("dur_ns")[rows], trace.links.launch[rows]
    nbytes = int(np.maximum(trace.column("bytes")[rows], 0).sum()) // analysis.steps
    yield Hit(
        message=f"The device copies {size(nbytes)} within its own memory in each step "
        f"({percent(share)} of the step).",
        evidence=(
            Evidence("copy_share", round(share, 4), "ratio"),
            Evidence("bytes_per_step", nbytes, "bytes"),
            Evidence("copies_per_step", round(rows.size / analysis.steps, 1), "count"),
        ),
        locations=analysis.locations(rows, calls=("clone", "copy_", "contiguous", "copy")),
        fix=Fix(
            summary="Update in place or through views in place of copying whole tensors.",
            snippet="torch._foreach_lerp_(averages, parameters, 0.01)  # no clones",
            reference="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
        ),
        gain=analysis.gain(
            Change(durations=(rows, dur // 2)),
            Change(durations=(rows, dur // 2), host_cut=ops, host_cut_factor=0.75),
            Change(drop_calls=launch[launch >= 0], host_cut=ops),
        ),
        confidence=0.7,
        claims=spent,
    )


def _moving_cats(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    moved = analysis.get(moved_by_cat)
    inside = np.isin(moved.rows, analysis.in_window(moved.rows)) & ~moved.grows
    rows, new_ns = moved.rows[inside], moved.new_ns[inside]
    spent = analysis.extent(rows)
    share = measure(clip(spent, *analysis.window)) / (analysis.step_ns * analysis.steps)
    if rows.size == 0 or share < options.min_device_copies:
        return
    added = float(moved.new[inside].sum() / moved.result[inside].sum())
    each = rows.size / analysis.steps
    yield Hit(
        message=f"`cat` copies a whole tensor to add {percent(added)} to it: "
        f"{duration(int(analysis.trace.column('dur_ns')[rows].sum()) // analysis.steps)} of each "
        f"step ({percent(min(share, 1.0))}).",
        evidence=(
            Evidence("copy_share", round(min(share, 1.0), 4), "ratio"),
            Evidence("new_part", round(added, 5), "ratio", "derived"),
            Evidence("copies_per_step", round(each, 1), "count"),
        ),
        locations=analysis.locations(rows, calls=("cat", "concat", "concatenate")),
        fix=Fix(
            summary="Write what is new into a ring buffer.",
            snippet="buffer[:, at] = new  # in place of torch.cat([buffer[:, 1:], new], 1)\n"
            "at = (at + 1) % buffer.shape[1]",
            reference="https://docs.pytorch.org/docs/stable/generated/torch.Tensor.index_copy_.html",
        ),
        gain=analysis.gain(
            Change(durations=(rows, 2 * new_ns + 2_000), extra_host_ns=int(_LAUNCH_NS * each)),
            Change(durations=(rows, new_ns + 1_000)),
        ),
        confidence=0.9,
        claims=spent,
    )


def _operators(analysis: Analysis, rows: IntArray) -> Intervals:
    """Host time of the operators that copy; what replaces them needs a part of it."""
    ops = analysis.trace.links.op[rows]
    return extent_of(analysis.trace, ops[ops >= 0])


def _distributed(analysis: Analysis, rows: IntArray) -> npt.NDArray[np.bool_]:
    """Copies that FSDP, DDP or a collective makes."""
    trace, tree = analysis.trace, analysis.trace.tree
    names = trace.name_flags(is_distributed_copy)
    flag = (tree.kind == Kind.HOST_COLLECTIVE) | names[trace.column("name_id")[tree.rows]]
    node = trace.links.node[rows]
    return (node >= 0) & (nearest(flag, tree.parent)[np.maximum(node, 0)] >= 0)


def _to_the_host_and_back(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.kernel("gemm", at + 30, 3_000, launch_at=at + 10)
        t.op("aten::to", at + 40, 4_000)
        t.copy("DtoH Pageable", 8 << 20, at + 3_040, 980, launch_at=at + 50, launch_dur=3_980)
        t.python("train.py(10): clip", at + 4_050, 3_000)
        t.op("aten::to", at + 7_100, 1_100)
        t.copy("HtoD Pageable", 8 << 20, at + 7_130, 1_050, launch_at=at + 7_120, launch_dur=1_070)
        t.kernel("gemm", at + 8_300, 1_500, launch_at=at + 8_250)


def _result_then_next_batch(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.copy("HtoD Pinned", 8 << 20, at + 30, 200, launch_at=at + 10, op="aten::copy_")
        t.kernel("gemm", at + 240, 9_000, launch_at=at + 40)
        t.op("aten::to", at + 60, 9_900)
        t.copy("DtoH Pinned", 8 << 20, at + 9_250, 200, launch_at=at + 70, launch_dur=9_400)


RULE = Rule(
    code="MM309",
    name="device-to-device-copy-heavy",
    class_="memory",
    summary="Data goes to the host and back, or is copied within the device, without need.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches"}),
    evidence="T",
    references=("https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",),
    examples=(
        Example("8 MiB fetched, clipped on the host and sent back", _to_the_host_and_back, True),
        Example("a result fetched before the next batch is sent", _result_then_next_batch, False),
    ),
)
