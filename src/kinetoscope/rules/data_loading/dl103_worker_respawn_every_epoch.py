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
For very short epochs iterate over an endless sampler instead. `next(iter(loader))` in a step starts
workers for a whole epoch and stops them after one batch: make the iterator once, before the loop.

## Limits
The gain holds for epochs as short as the recorded ones. A recording that happens to hold the end
of one long epoch shows a single restart, which this rule leaves alone, unless one epoch is seen to
end and the loader to ask for all batches of the new one in the recorded steps: then epochs are
short. The first batch of an epoch has to be waited for with persistent workers too, though not for
as long: that part of the gain is an estimate. An iterator that lasts has its batches ready.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Intervals, measure, merge, union
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Gain
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.data_loading._epochs import Epochs, cost, epochs
from kinetoscope.rules.data_loading._input import exposed_ratio
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When restarting workers is worth a word."""

    min_share: float = 0.05
    """Ending and starting workers as a share of the time; the border of DL101."""
    min_restarts: int = 2
    """Fewer say nothing about how long an epoch is, unless its batches are known."""
    min_exposed: float = 0.5
    """Part of the restarts in which the device is idle."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Add up what the beginnings of epochs cost."""
    found = epochs(analysis)
    stretch = cost(found)
    if found.count == 0 or (found.count < options.min_restarts and found.batches is None):
        return
    steps = analysis.steps_on_host / found.count
    if found.count < options.min_restarts:
        steps = float(found.batches or 1)
    low, high = analysis.times.host_window
    rest = max(high - low - measure(stretch), 0)
    time = rest * steps * found.count / analysis.steps_on_host + measure(stretch)
    share = measure(stretch) / max(time, 1)
    if measure(found.restart) < options.min_share * time:
        return
    if exposed_ratio(analysis, stretch) < options.min_exposed:
        return
    each = measure(stretch) // found.count
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
        fix=_fix(found),
        gain=_gain(analysis, found, analysis.steps_on_host / found.count / steps),
        confidence=0.9 if found.seen else 0.7,
        claims=stretch,
    )


def _how_often(steps: float) -> str:
    return "in every step" if round(steps, 1) == 1 else f"every {count(round(steps, 1))} steps"


def _fix(found: Epochs) -> Fix:
    reference = "https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader"
    if found.dropped:
        return Fix(
            summary="Make the iterator once and take the batches of all steps from it: it is "
            "thrown away before its end, and its workers with it. Where each pass must begin "
            "anew, keep the workers (persistent_workers=True).",
            snippet="batches = itertools.chain.from_iterable(itertools.repeat(loader))   # once\n"
            "batch = next(batches)   # in each step, in place of next(iter(loader))",
            reference=reference,
        )
    return Fix(
        summary="Keep the workers alive between epochs, and build the DataLoader once, "
        "outside the loop over epochs.",
        snippet="loader = DataLoader(..., persistent_workers=True)  # before the epoch loop",
        reference=reference,
    )


def _gain(analysis: Analysis, found: Epochs, part: float) -> Gain:
    """By replay; `part` is the number of recorded steps to a restart over that of an epoch.

    What a restart costs is spread over all of them: the rest of the step stays as it is.
    """
    wait = found.first_wait if found.dropped else _most(found.first_wait)
    whole = cost(found)
    slowed = union(whole[1], whole[1] + _SLOWED_NS)
    gain = analysis.gain(
        Change(host_cut=found.restart),
        Change(host_cut=merge(found.restart, wait)),
        Change(host_cut=whole, more_cuts=((slowed, _SLOWED),)),
    )
    low, mid, high = (round(1 + part * (x - 1), 3) for x in (gain.low, gain.mid, gain.high))
    return msgspec.structs.replace(gain, low=low, mid=mid, high=high)


_STARTING = 0.75
"""Likely part of the wait for new workers' first batch that living ones save: each new process
loads its modules and its copy of the data set first. In programs of four sets, with the wait cut by
half, the true gain was above the likely one every time."""


_SLOWED_NS = 8_000_000
_SLOWED = 1 / 3
"""Part of the time right after a restart that the restart costs at best: a process that has forked
copies each page that it writes to, a fault for each, and new workers take cores. In recordings of
six programs the operators of those 8 ms took 1.5 times as long as without restarts."""


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


def _one_short_epoch(t: TraceBuilder) -> None:
    """Ten steps of 10 ms; the one restart takes 60 ms and asks for 12 batches, all there are."""
    at = 0.0
    for step in range(10):
        restart = 60_000.0 if step == 2 else 0.0
        t.step(at, restart + 10_000)
        if restart:
            t.python("torch/utils/data/dataloader.py(1668): _shutdown_workers", at, 50)
            t.python("torch/utils/data/dataloader.py(428): _get_iterator", at + 50, restart - 50)
        batches = (12 if restart else 1) if step < 3 else 0
        for batch in range(max(batches, 1)):
            start = at + 100 + batch * 100
            t.python("torch/utils/data/dataloader.py(1550): _try_put_index", start, 50)
            if batches:
                t.python("multiprocessing/queues.py(86): put", start + 10, 20)
        t.loader(at + restart + 2_000, 100, workers=True)
        t.kernel("gemm", at + restart + 2_300, 7_000, launch_at=at + restart + 2_200)
        at += restart + 10_000


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
    gain_of=("persistent-workers",),
    references=("https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",),
    examples=(
        Example("an epoch in every step, with new workers", _short_epochs, fires=True),
        Example("one restart, for an epoch of few batches", _one_short_epoch, fires=True),
        Example("the same with workers that stay alive", _kept_alive, fires=False),
    ),
)
