"""Worker processes are started anew for every epoch, and epochs are short.

## What it finds
At least twice in the recorded steps the DataLoader builds a new iterator: it forks its workers
(`_MultiProcessingDataLoaderIter.__init__`), waits for their first batch, and shuts them down at
the end of the epoch (`_shutdown_workers`). Without stacks: a long stretch between two calls of
the loader in which no work was sent to the device.

## Why it matters
Starting a worker costs 20 ms and more (a fork copies the page tables of the whole process, spawn
imports everything again), one worker after the other, with the device idle. With short epochs,
or an evaluation after every few steps, that is most of the time.

## How to fix it
`DataLoader(..., persistent_workers=True)`, and build the loader once, outside the epoch loop.
For very short epochs iterate over an endless sampler instead.

## Limits
The gain holds for epochs as short as the recorded ones. A recording that happens to hold the end
of one long epoch shows a single restart, which this rule leaves alone. The first batch of an
epoch has to be waited for with persistent workers too, though not for as long: that part of
the gain is an estimate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Intervals, measure, merge
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.data_loading._epochs import cost, epochs
from kinetoscope.rules.data_loading._input import exposed_ratio
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When restarting workers is worth a word."""

    min_share: float = 0.05
    """Ending and starting workers as a share of the time; the border of DL101."""
    min_restarts: int = 2
    """Fewer say nothing about how long an epoch is."""
    min_exposed: float = 0.5
    """Part of the restarts in which the device is idle."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Add up what the beginnings of epochs cost."""
    found = epochs(analysis)
    stretch = cost(found)
    total = analysis.step_ns * analysis.steps_on_host
    share = measure(stretch) / total
    restarting = measure(found.restart) / total
    if found.count < options.min_restarts or restarting < options.min_share:
        return
    if exposed_ratio(analysis, stretch) < options.min_exposed:
        return
    each = measure(stretch) // found.count
    steps = analysis.steps_on_host / found.count
    yield Hit(
        message=f"The DataLoader starts its workers anew {_how_often(steps)}: "
        f"{duration(each)} each time, {percent(min(share, 1.0))} of the time.",
        evidence=(
            Evidence("restarts", found.count, "count"),
            Evidence("time_per_restart", each, "ns"),
            Evidence("restart_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("steps_per_epoch", round(steps, 1), "count", "derived"),
        ),
        locations=analysis.locations(found.rows, calls=("iter", "enumerate")),
        fix=Fix(
            summary="Keep the workers alive between epochs, and build the DataLoader once, "
            "outside the loop over epochs.",
            snippet="loader = DataLoader(..., persistent_workers=True)  # before the epoch loop",
            reference="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",
        ),
        gain=analysis.gain(
            Change(host_cut=found.restart),
            Change(host_cut=merge(found.restart, _most(found.first_wait))),
            Change(host_cut=stretch),
        ),
        confidence=0.9 if found.seen else 0.7,
        claims=stretch,
    )


def _how_often(steps: float) -> str:
    return "in every step" if round(steps, 1) == 1 else f"every {count(round(steps, 1))} steps"


_STARTING = 0.75
"""Likely part of the wait for new workers' first batch that living ones save: each new process
loads its modules and its copy of the data set first. In programs of four sets, with the wait cut by
half, the true gain was above the likely one every time."""


def _most(stretch: Intervals) -> Intervals:
    """The first part of each wait."""
    start, end = stretch
    return start, np.asarray(start + _STARTING * (end - start), dtype=np.int64)


def _short_epochs(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 100_000
        t.step(at, 100_000)
        t.python("torch/utils/data/dataloader.py(428): _get_iterator", at, 60_000)
        t.loader(at + 60_000, 20_000, workers=True)
        t.kernel("gemm", at + 80_100, 10_000, launch_at=at + 80_050)
        t.loader(at + 91_000, 100, workers=True)
        t.kernel("gemm", at + 91_300, 8_000, launch_at=at + 91_200)


def _kept_alive(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 20_000
        t.step(at, 20_000)
        t.python("torch/utils/data/dataloader.py(428): _get_iterator", at, 200)
        t.loader(at + 200, 300, workers=True)
        t.kernel("gemm", at + 600, 19_000, launch_at=at + 550)


RULE = Rule(
    code="DL103",
    name="worker-respawn-every-epoch",
    class_="data_loading",
    summary="The DataLoader's workers are started anew for every (short) epoch.",
    check=check,
    options=Thresholds(),
    evidence="ET",
    remedies=("dataloader-workers", "persistent-workers"),
    references=("https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",),
    examples=(
        Example("an epoch in every step, with new workers", _short_epochs, fires=True),
        Example("the same with workers that stay alive", _kept_alive, fires=False),
    ),
)
