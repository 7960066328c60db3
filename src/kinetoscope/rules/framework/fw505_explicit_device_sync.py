"""The program waits for the device although no operator asks for it.

## What it finds
`torch.cuda.synchronize()`, `stream.synchronize()`, `event.synchronize()` or a library that does
the same, inside the step; and a single blocking call that holds the host for most of the
recording while the device does nothing.

## Why it matters
The host cannot run ahead of the device. After the wait the device has nothing to do until the
next kernel has been launched.

## How to fix it
Delete the call. To time a part of the step, record two events and read them later:
`start.record(); ...; end.record()`, and `start.elapsed_time(end)` after the step. To order work
of two streams use `stream.wait_stream(other)`, which does not stop the host.

## Limits
Where the device is busy all the time the wait costs nothing. A wait at the end of an inference
request is how its answer is delivered and is not reported. When device and host both wait, the
work they wait for is not in the recording, and no gain can be predicted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import complement, union
from kinetoscope.metrics.waits import Wait, Waits
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._waiting import avoidable, blocked_per_step
from kinetoscope.units import duration, how_often, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_CALLS = ("synchronize", "wait", "query")
_EVENTS_URL = "https://docs.pytorch.org/docs/stable/generated/torch.cuda.Event.html"


class Thresholds(Options, frozen=True):
    """When a wait is worth a word without a predicted gain."""

    min_stall: float = 0.3
    """Share of the step that one call must block, the device idle, to be reported by itself."""
    min_idle: float = 0.9
    """Part of that call in which the device does nothing that was recorded."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Replay the steps without the waits; then look for a call that stalls everything."""
    waits = avoidable(analysis, Wait.EXPLICIT)
    if waits.call.size:
        yield _explicit(analysis, waits)
    yield from _stall(analysis, options)


def _explicit(analysis: Analysis, waits: Waits) -> Hit:
    trace = analysis.trace
    per_step = waits.call.size / analysis.steps_on_host
    blocked = blocked_per_step(analysis, waits)
    names, counts = np.unique(trace.column("name_id")[waits.call], return_counts=True)
    name = trace.names[names[counts.argmax()]]
    waiting = analysis.extent(waits.call)
    return Hit(
        message=(
            f"The program waits for the device {how_often(per_step)} a step "
            f"(`{name}`), {duration(blocked)} in all, and no operator asks for it."
        ),
        evidence=(
            Evidence("waits_per_step", round(per_step, 1), "count"),
            Evidence("blocked_time", blocked, "ns"),
        ),
        locations=analysis.locations(waits.call, calls=_CALLS),
        fix=Fix(
            summary="Remove the synchronisation; time with events, order streams with "
            "`wait_stream`.",
            snippet="start = torch.cuda.Event(enable_timing=True)\n"
            "end = torch.cuda.Event(enable_timing=True)\n"
            "start.record()\n...\nend.record()\n"
            "# later, once a report is written: end.synchronize(); start.elapsed_time(end)",
            reference=_EVENTS_URL,
        ),
        gain=analysis.gain(
            Change(unblock=waits.call),
            Change(unblock=waits.call, drop_calls=waits.call, host_cut=waiting),
        ),
        confidence=0.9,
        claims=waiting,
    )


def _stall(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """One call blocks the host, and the device does nothing that was recorded meanwhile."""
    trace, device = analysis.trace, analysis.device
    if device is None or analysis.waits.call.size == 0:
        return
    call = analysis.in_steps(analysis.waits.call)
    if call.size == 0:
        return
    dur = trace.column("dur_ns")[call]
    longest = int(call[dur.argmax()])
    start, length = int(trace.column("ts_ns")[longest]), int(dur.max())
    idle = complement(device.busy, start, start + length)
    share = int((idle[1] - idle[0]).sum()) / max(length, 1)
    if length < options.min_stall * analysis.step_ns or share < options.min_idle:
        return
    op = int(trace.links.op[longest])
    name = trace.names[trace.column("name_id")[longest]]
    asked = f" under `{trace.names[trace.column('name_id')[op]]}`" if op >= 0 else ""
    row = np.array([op if op >= 0 else longest])
    yield Hit(
        message=(
            f"`{name}`{asked} blocks the host for {duration(length)}, "
            f"{percent(min(length / analysis.step_ns, 1.0))} of the step, while the device does "
            "nothing that was recorded: both wait for something outside this recording."
        ),
        evidence=(
            Evidence("blocked_time", length, "ns"),
            Evidence("device_idle", round(share, 6), "ratio", "derived"),
        ),
        locations=analysis.locations(row, calls=(*_CALLS, "copy_", "cpu", "item", "to")),
        fix=Fix(
            summary="Record from before this call on, to see what it waits for: work of another "
            "stream or process, launched before the recording began. If the value is only "
            "needed later, copy it with `non_blocking=True` into pinned memory.",
            snippet="host.copy_(device_tensor, non_blocking=True)\nready.record()",
            reference=_EVENTS_URL,
        ),
        confidence=0.4,
        claims=union(np.array([start]), np.array([start + length])),
        at_least="medium",
        keep=True,
    )


def _timers(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 2_000.0
        t.step(at, 2_000)
        t.python("train.py(10): timed", at + 5, 1_990)
        for i in range(16):
            begin = at + 10 + i * 120
            t.kernel("gemm", begin + 15, 70, launch_at=begin + 8, op="aten::mm")
            t.sync(begin + 20, 72, name="cudaDeviceSynchronize")


def _end_of_step(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000.0
        t.step(at, 10_000)
        t.kernel("gemm", at + 20, 9_900, launch_at=at + 10, op="aten::mm")
        t.sync(at + 30, 9_900, name="cudaDeviceSynchronize")


RULE = Rule(
    code="FW505",
    name="explicit-device-sync",
    class_="framework",
    summary="The program waits for the device although no operator asks for it.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches"}),
    references=(
        _EVENTS_URL,
        "https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution",
    ),
    examples=(
        Example("a device synchronisation after every block", _timers, fires=True),
        Example("a wait for the answer at the end of a request", _end_of_step, fires=False),
    ),
)
