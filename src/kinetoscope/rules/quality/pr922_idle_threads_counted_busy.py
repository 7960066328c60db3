"""Most of the recorded host time is threads that wait.

## What it finds
Frames that wait for a lock, a queue or a socket fill at least half of the recorded Python time, on
threads other than the main one.

## Why it matters
Tables of host time list such frames first, although they cost nothing.

## How to fix it
Ignore them when reading such tables; here they count as waiting, not as work.

## Limits
A wait on the main thread is another matter and counts. The thread of `kinetoscope run` itself does
not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.activity import Cause
from kinetoscope.metrics.budget import main_thread
from kinetoscope.result import Evidence
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.quality._examples import healthy, launch
from kinetoscope.rules.quality._notice import notice
from kinetoscope.trace.frames import is_capture_frame
from kinetoscope.units import percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

REFERENCE = "https://docs.pytorch.org/docs/stable/profiler.html"


class Thresholds(Options, frozen=True):
    """When to speak."""

    min_share: float = 0.5
    """Part of the time of all Python frames."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Most of the recorded host time is threads that wait."""
    activity = analysis.activity
    threads = analysis.trace.column("thread")[analysis.matching(is_capture_frame)]
    own = np.setdiff1d(threads, [main_thread(analysis.trace)])
    ns = np.where(np.isin(activity.thread, own), 0, activity.end - activity.start)
    waits = (activity.cause == Cause.WAIT) & (activity.thread != main_thread(analysis.trace))
    python = np.isin(activity.cause, (Cause.WAIT, Cause.PYTHON))
    share = float(ns[waits].sum() / max(ns[python].sum(), 1))
    if share < options.min_share:
        return
    yield notice(
        f"{percent(share)} of the time in Python frames is threads that wait for work.",
        fix="Ignore those frames in tables of host time; they cost nothing.",
        reference=REFERENCE,
        evidence=(Evidence("waiting_share", round(share, 6), "ratio"),),
    )


def _bad(t: TraceBuilder) -> None:
    for step in range(4):
        t.step(step * 1_000, 1_000)
        t.python("train.py(3): step", step * 1_000 + 1, 300)
        launch(t, step * 1_000)
    t.python("queue.py(150): get", 0, 4_000, tid=2000)


def _good(t: TraceBuilder) -> None:
    healthy(t, steps=4)
    t.python("train.py(3): main", 5, 3_900)


RULE = Rule(
    code="PR922",
    name="idle-threads-counted-busy",
    class_="quality",
    summary="Waiting threads dominate the recorded host time.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"stacks"}),
    evidence="T",
    references=(REFERENCE,),
    examples=(
        Example("a thread that waits for a queue all the time", _bad, fires=True),
        Example("a healthy recording", _good, fires=False),
    ),
)
