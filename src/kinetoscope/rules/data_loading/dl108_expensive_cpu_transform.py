"""One function of the data set takes most of the loading time, too much for workers to hide.

## What it finds
With `num_workers=0`, more than half of the time in the DataLoader goes into one function of the
program (`__getitem__`, a transform, a tokenizer), and it would take more worker processes to hide
it than is sensible.

## Why it matters
Workers spread the cost over cores, they do not lower it: a transform that takes twenty times as
long as the rest of the step occupies twenty cores for each device.

## How to fix it
Do the work once instead of in each epoch: store decoded, resized or tokenised samples. Use library
code that works on whole arrays in place of Python loops. Move image augmentation to the
device, on the batch (`torchvision.transforms.v2`, `decode_jpeg(device="cuda")`, DALI).

## Limits
Recording stacks slows Python code down by several times, so a function made of many small Python
calls looks more expensive than it is. When a few workers hide the loading, DL101 says so and
this rule keeps quiet. The recording does not show worker processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import measure, union
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.data_loading._input import exposed_ratio, loader_rows, loader_work
from kinetoscope.trace.frames import is_loader_in_process
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When one function is worth a word."""

    min_share: float = 0.05
    """Loading time as a share of the step; the border of DL101."""
    min_function: float = 0.5
    """Part of the loading time that goes into the function."""
    most_workers: int = 16
    """Up to so many workers hide the loading instead; what a host has for one device."""
    min_exposed: float = 0.5
    """Part of the loading time in which the device is idle."""


_MANY_WORKERS = 100


def _workers(loading_ns: int, rest_ns: int) -> str:
    """How many workers it would take, in words; beyond a hundred the number says nothing."""
    needed = -(-loading_ns // max(rest_ns, 1))
    return (
        f"it would take {needed} workers"
        if needed <= _MANY_WORKERS
        else "no number of workers is enough"
    )


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find the function that the loading time goes into."""
    rows = loader_rows(analysis, is_loader_in_process)
    if rows.size == 0:
        return
    loading = analysis.extent(rows)
    per_step = measure(loading) // analysis.steps_on_host
    rest = max(analysis.step_ns - per_step, 1)
    if per_step < options.min_share * analysis.step_ns or per_step / rest <= options.most_workers:
        return
    if exposed_ratio(analysis, loading) < options.min_exposed:
        return
    work, start, end, name = _heaviest(analysis, rows)
    share = int((end - start).sum()) / max(measure(loading), 1)
    if share < options.min_function:
        return
    stretch = union(start, end)
    yield Hit(
        message=f"{name} takes {percent(min(share, 1.0))} of the loading time, "
        f"{duration(measure(stretch) // analysis.steps_on_host)} of each step; "
        f"{_workers(per_step, rest)} to hide it.",
        evidence=(
            Evidence("time_in_function", measure(stretch) // analysis.steps_on_host, "ns"),
            Evidence("share_of_loading", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("loader_time", per_step, "ns"),
            Evidence("rest_of_the_step", rest, "ns", "derived"),
        ),
        locations=analysis.locations(work, end - start),
        fix=Fix(
            summary=f"Make {name} cheaper: store its result once, use array operations in place "
            "of Python loops, or do the work on the device for the whole batch. Then spread what "
            "is left over workers.",
            reference="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
        ),
        gain=analysis.gain(
            Change(host_cut=stretch, host_cut_factor=0.5),
            Change(host_cut=stretch, host_cut_factor=0.8),
            Change(host_cut=stretch),
        ),
        confidence=0.7,
        claims=loading,
    )


def _heaviest(analysis: Analysis, rows: IntArray) -> tuple[IntArray, IntArray, IntArray, str]:
    """Innermost events, starts and ends inside the user function that takes most; its name."""
    tree, trace = analysis.trace.tree, analysis.trace
    work, start, end = loader_work(analysis, rows)
    frame = trace.column("name_id")[tree.rows[tree.user_frame[tree.node_of[work]]]]
    if work.size == 0:
        return work, start, end, ""
    ids, group = np.unique(frame, return_inverse=True)
    best = int(np.bincount(group, end - start).argmax())
    mine = group == best
    parsed = tree.frames.get(int(ids[best]))
    return work[mine], start[mine], end[mine], parsed.function if parsed else "One function"


def _costly(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 50_000
        t.step(at, 50_000)
        t.loader(at, 48_000)
        t.python("data.py(10): __getitem__", at + 100, 47_000)
        t.kernel("gemm", at + 48_100, 1_500, launch_at=at + 48_050)


def _hidden_by_workers(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.loader(at, 5_000)
        t.python("data.py(10): __getitem__", at + 100, 4_500)
        t.kernel("gemm", at + 5_100, 4_500, launch_at=at + 5_050)


RULE = Rule(
    code="DL108",
    name="expensive-cpu-transform",
    class_="data_loading",
    summary="One function of the data set takes more time than workers can hide.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"stacks"}),
    evidence="T",
    remedies=("dataloader-workers",),
    references=("https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",),
    examples=(
        Example("a transform that takes 24 times the rest of the step", _costly, fires=True),
        Example("a transform that two workers hide", _hidden_by_workers, fires=False),
    ),
)
