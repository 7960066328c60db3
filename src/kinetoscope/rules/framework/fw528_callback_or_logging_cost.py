"""Loggers, progress bars and callbacks run between the steps, and the device waits.

## What it finds
Frames of loggers (wandb, TensorBoard, MLflow, `logging`), of progress bars, and of the callbacks of
Lightning, transformers and accelerate that take a visible part of the step while the device idles.

## Why it matters
What is logged in every step is formatted, serialised and written by the thread that launches the
kernels.

## How to fix it
Log every 50 steps, write from a thread, and keep what is logged on the device until then.

## Limits
A preview: no recording of a real trainer has proved it yet. Work that a callback does once in many
steps looks larger in a short recording than it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.data_loading._input import exposed_ratio
from kinetoscope.rules.framework._surroundings import (
    net_ns,
    outermost,
    steady_extent,
)
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.logging_frames import is_logging_frame
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_URL = "https://lightning.ai/docs/pytorch/stable/extensions/logging.html"


class Thresholds(Options, frozen=True):
    """When logging is worth a word."""

    min_share: float = 0.03
    """Its time as a share of the likely step."""
    min_exposed: float = 0.3
    """Part of it in which the device is idle."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Add the outermost frames up, and replay the steps without them."""
    trace, tree = analysis.trace, analysis.trace.tree
    flag = trace.tree.named(is_logging_frame) & (tree.kind == Kind.PYTHON)
    rows = analysis.in_steps(tree.rows[outermost(trace, flag)])
    if rows.size == 0:
        return
    logging = steady_extent(analysis, rows)
    spent = net_ns(analysis, logging)
    share = spent / max(analysis.step_time.mid, 1)
    if share < options.min_share or exposed_ratio(analysis, logging) < options.min_exposed:
        return
    yield Hit(
        message=(
            f"Logging and callbacks take {duration(spent)} of each step on the host, "
            f"{percent(min(share, 1.0))} of it."
        ),
        evidence=(
            Evidence("logging_time", spent, "ns", "estimated"),
            Evidence("logging_recorded", measure(logging) // analysis.steps_on_host, "ns"),
            Evidence("calls", round(rows.size / analysis.steps_on_host, 1), "count"),
        ),
        locations=analysis.locations(rows),
        fix=Fix(
            summary="Log every 50 steps, and not from the thread that launches the kernels.",
            snippet="trainer = Trainer(log_every_n_steps=50, enable_progress_bar=False)",
            reference=_URL,
        ),
        gain=analysis.gain(
            Change(host_cut=logging, host_cut_factor=0.7),
            Change(host_cut=logging, host_cut_factor=0.95),
            Change(host_cut=logging),
        ),
        confidence=0.7,
        claims=logging,
    )


def _steps(t: TraceBuilder, logging: float) -> None:
    for step in range(4):
        at = step * 5_000.0
        t.step(at, 5_000)
        t.python("train.py(10): step", at + 2, 4_990)
        t.kernel("gemm", at + 30, 2_000, launch_at=at + 10)
        t.sync(at + 40, 2_000)
        t.python("wandb/sdk/wandb_run.py(1700): log", at + 2_050, logging)


def _every_step(t: TraceBuilder) -> None:
    _steps(t, 2_500)


def _seldom(t: TraceBuilder) -> None:
    _steps(t, 50)


RULE = Rule(
    code="FW528",
    name="callback-or-logging-cost",
    class_="framework",
    summary="Loggers, progress bars and callbacks keep the device waiting.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"stacks"}),
    evidence="L",
    references=(_URL,),
    examples=(
        Example("a logger that takes half of the step", _every_step, fires=True),
        Example("a logger that takes 1 % of the step", _seldom, fires=False),
    ),
    preview=True,
)
