"""The host is so far ahead that it waits for room in the launch queue: a healthy sign.

## What it finds
Launches that take far longer than usual while hundreds of earlier ones are not done yet, or the
driver's own records of a full command buffer.

## Why it matters
The time in these launches is not work. It shows that the device has enough to do: launching
faster, capturing graphs or removing Python gains nothing here.

## How to fix it
Nothing is wrong. What shortens the device's work shortens the step.

## Limits
The queue of a device holds about a thousand launches. A program that waits for the device every
few launches never fills it, however busy the device is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import measure, merge
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._surroundings import steady_extent
from kinetoscope.trace.kinds import DEVICE_WORK, Kind
from kinetoscope.trace.torch_frames import is_queue_full
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When a launch waited for room."""

    factor: float = 50.0
    """Length of a launch over the median; RULES of thumb say the 95th percentile."""
    min_launch_ns: int = 200_000
    """And its length, far beyond what a busy host makes of a launch."""
    min_depth: int = 500
    """Launches that are not done yet; the queue of an H200 held 1,022."""
    min_share: float = 0.02
    """Waiting for room as a share of the step."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Look for launches that waited although nothing was wrong with them."""
    launches, depth = _waiting(analysis, options)
    full = analysis.matching(is_queue_full)
    full = full[analysis.trace.column("kind")[full] == Kind.OVERHEAD]
    if launches.size == 0:
        return
    blocked = merge(steady_extent(analysis, launches), steady_extent(analysis, full))
    per_step = measure(blocked) // analysis.steps_on_host
    share = per_step / max(analysis.step_ns, 1)
    if share < options.min_share:
        return
    yield Hit(
        message=(
            f"The host is {count(depth)} launches ahead of the device and waits "
            f"{duration(per_step)} of each step ({percent(min(share, 1.0))}) for room in the "
            "queue: launching does not limit this program."
        ),
        evidence=(
            Evidence("launches_ahead", depth, "count"),
            Evidence("waiting_launches", int(launches.size), "count"),
            Evidence("waited", per_step, "ns"),
        ),
        fix=Fix(
            summary="Nothing to fix on the host: only shorter work on the device makes the step "
            "shorter.",
            reference="https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution",
        ),
        confidence=0.9,
        at_most="info",
        keep=True,
    )


def _waiting(analysis: Analysis, options: Thresholds) -> tuple[IntArray, int]:
    """Launches that waited for room, and the usual number of unfinished ones before them."""
    trace = analysis.trace
    calls = analysis.in_steps(analysis.rows(Kind.LAUNCH, Kind.COPY_CALL))
    if calls.size == 0:
        return calls, 0
    ts, dur = trace.column("ts_ns"), trace.column("dur_ns")
    usual = float(np.median(dur[calls]))
    long = calls[dur[calls] >= max(options.factor * usual, options.min_launch_ns)]
    if long.size == 0:
        return long, 0
    events = analysis.rows(*DEVICE_WORK)
    launch = trace.links.launch[events]
    issued = np.sort(ts[launch[launch >= 0]])
    done = np.sort((ts + dur)[events[launch >= 0]])
    depth = np.searchsorted(issued, ts[long]) - np.searchsorted(done, ts[long])
    deep = depth >= options.min_depth
    return long[deep], int(np.median(depth[deep])) if deep.any() else 0


def _steps(t: TraceBuilder, launches: int, kernel_us: float) -> None:
    """Each step issues its launches at once and then waits in the last one."""
    step_us = launches * kernel_us
    for step in range(4):
        at = step * step_us
        t.step(at, step_us)
        for i in range(launches):
            last = i == launches - 1
            begin = at + 10 + 2 * i
            t.kernel(
                "gemm",
                at + step_us + i * kernel_us,
                kernel_us,
                launch_at=begin,
                launch_dur=step_us - 2 * launches - 20 if last else 1.5,
            )


def _far_ahead(t: TraceBuilder) -> None:
    _steps(t, 600, 10)


def _few_launches(t: TraceBuilder) -> None:
    _steps(t, 60, 100)


RULE = Rule(
    code="FW524",
    name="launch-queue-saturated",
    class_="framework",
    summary="The host waits for room in the launch queue: the device has enough to do.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches"}),
    references=("https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution",),
    examples=(
        Example("600 launches in the queue and a launch that waits", _far_ahead, fires=True),
        Example("a long launch behind sixty others", _few_launches, fires=False),
    ),
)
