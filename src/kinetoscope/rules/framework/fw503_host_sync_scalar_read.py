"""The host reads values back from the device, and waits for them each time.

## What it finds
`.item()`, `.tolist()`, `float(t)`, `if t:` or a small `.cpu()` on a tensor of the device, inside
the step. Each one is a copy to the host and a wait until the device has caught up.

## Why it matters
The host cannot run ahead: after each read the device is empty until the next kernel has been
launched. The read itself costs some tens of microseconds even when nothing had to be waited for.

## How to fix it
Keep the values on the device: sum a loss with `total += loss.detach()` and read it once every
hundred steps, decide with `torch.where` instead of `if`, stack many scalars and read them with
one `.tolist()`. `torch.cuda.set_sync_debug_mode("warn")` points at every read.

## Limits
A long wait is not a long cost: where the device is busy all the time the host merely waits for
it, and removing the read gains nothing. A loop of many reads is predicted as partly, at best
wholly, written with tensors. Reads on which the control flow depends need a different algorithm.
The last read of an inference request is its answer and is not reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import empty, measure, merge
from kinetoscope.metrics.waits import Wait
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._waiting import avoidable, blocked_per_step, loop_bodies, part_of
from kinetoscope.units import duration, how_often

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

CALLS = ("item", "tolist", "cpu", "numpy", "float", "int", "bool", "equal", "allclose")


class Thresholds(Options, frozen=True):
    """When reads are worth a word."""

    many_per_step: float = 8.0
    """From so many reads a step on they are taken for a loop that one read can replace."""
    most_launches: int = 8
    """Launches between two reads, up to which a loop is taken for one that can be vectorised."""
    likely_body: float = 0.5
    """Part of such a loop's other host time that the likely estimate takes off."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Replay the steps without the reads."""
    waits = avoidable(analysis, Wait.SCALAR)
    if waits.call.size == 0:
        return
    ops = np.unique(waits.op)
    reading = analysis.extent(ops)
    per_step = ops.size / analysis.steps_on_host
    blocked = blocked_per_step(analysis, waits)
    body = loop_bodies(analysis, ops, most_launches=options.most_launches)
    body = body if per_step >= options.many_per_step else empty()
    partly, wholly = (
        Change(
            host_cut=merge(reading, part_of(body, share)),
            unblock=waits.calls,
            drop_calls=waits.calls,
        )
        for share in (options.likely_body, 1.0)
    )
    yield Hit(
        message=(
            f"Values are read back from the device {how_often(per_step)} a step; the host spends "
            f"{duration(measure(reading) // analysis.steps_on_host)} of each step on it, "
            f"{duration(blocked)} of that waiting."
        ),
        evidence=(
            Evidence("reads_per_step", round(per_step, 1), "count"),
            Evidence("read_time", measure(reading) // analysis.steps_on_host, "ns"),
            Evidence("blocked_time", blocked, "ns"),
        ),
        locations=analysis.locations(ops, calls=CALLS),
        fix=_fix(per_step, options),
        gain=analysis.gain(Change(unblock=waits.calls), partly, wholly),
        confidence=0.9,
        claims=reading,
    )


def _fix(per_step: float, options: Thresholds) -> Fix:
    many = per_step >= options.many_per_step
    return Fix(
        summary=(
            f"Collect the {per_step:,.0f} values in one tensor and read it once, or keep them on "
            "the device."
            if many
            else "Keep the value on the device and read it only when it is printed."
        ),
        snippet=(
            "values = torch.stack(values)   # stays on the device\nvalues.tolist()   # one read"
            if many
            else "total += loss.detach()\nif step % 100 == 0:\n    print(total.item() / 100)"
        ),
        reference="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
        "#avoid-unnecessary-cpu-gpu-synchronization",
    )


def _loop_of_reads(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 2_000.0
        t.step(at, 2_000)
        t.python("train.py(10): grad_norm", at + 5, 1_990)
        for i in range(20):
            begin = at + 10 + i * 95
            t.kernel("reduce_kernel", begin + 30, 30, launch_at=begin + 10, op="aten::norm")
            t.op("aten::item", begin + 25, 50)
            t.op("aten::_local_scalar_dense", begin + 26, 48)
            t.copy("DtoH Pinned", 4, begin + 62, 2, launch_at=begin + 30, launch_dur=6)
            t.sync(begin + 38, 32)


def _device_busy(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000.0
        t.step(at, 10_000)
        t.kernel("gemm", at + 30, 4_990, launch_at=at + 5, op="aten::mm")
        t.kernel("gemm", at + 5_022, 4_980, launch_at=at + 15, op="aten::mm")
        t.op("aten::item", at + 40, 5_010)
        t.op("aten::_local_scalar_dense", at + 41, 5_008)
        t.copy("DtoH Pinned", 4, at + 5_020, 2, launch_at=at + 45, launch_dur=6)
        t.sync(at + 53, 4_975)


RULE = Rule(
    code="FW503",
    name="host-sync-scalar-read",
    class_="framework",
    summary="Values are read back to the host inside the step, and each read waits.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches"}),
    evidence="TE",
    references=(
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
        "https://docs.pytorch.org/docs/stable/generated/torch.cuda.set_sync_debug_mode.html",
    ),
    examples=(
        Example("twenty reads a step, the device idle in between", _loop_of_reads, fires=True),
        Example("one long wait for a device that is always busy", _device_busy, fires=False),
    ),
)
