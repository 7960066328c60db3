"""The worker processes do not keep up: the main process waits for the next batch.

## What it finds
`enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__` waits for its workers in step after
step, and the device is idle meanwhile. A good set of workers has the batch ready before it is
asked for; then `__next__` takes well under a millisecond.

## Why it matters
The step takes as long as the workers need for one batch, however fast the device is.

## How to fix it
More workers (`num_workers`) and a deeper queue (`prefetch_factor`) help as long as cores and
storage do; a cheaper transform always helps: decode once and store the result, move augmentation
to the device, batch what is done sample by sample. Let each worker use one thread.

## Limits
The workers are other processes, so the recording shows that they are late but not why. Record a
few batches with `num_workers=0` (the data set alone) to see which function of the data set takes
the time. Taking a batch that is ready and rebuilding its tensors is not waiting; with
`pin_memory=True` another thread does that. The wait for the first batch of an epoch is not
counted: workers cannot fetch ahead across epochs. How far more workers scale (cores, disk,
network) is not in the recording either: the cautious end of the gain doubles the workers' pace,
the likely one makes it fourfold. Profiling slows the main process but not its workers: where it
waits in some steps only, the program may wait in all of them without the profiler. Workers that
began together deliver together: then one step in as many as there are workers waits for all of
them, and a short recording with one such step does not tell how often that is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Coverage, Intervals, intersect, measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Gain
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.data_loading._epochs import epochs
from kinetoscope.rules.data_loading._input import exposed_ratio, loader_call, loader_rows
from kinetoscope.trace.frames import is_loader_of_processes, is_wait
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When waiting for the workers is worth a word."""

    min_share: float = 0.05
    """Waiting time as a share of the step; TensorBoard's plugin used the same border."""
    min_ns: int = 1_000_000
    """Less waiting in a step than this is jitter."""
    min_unseen_ns: int = 2_000_000
    """The same without Python stacks, where taking a batch that is ready from the queue and
    rebuilding its tensors (1.2 ms in one recording) cannot be told from waiting."""
    min_exposed: float = 0.5
    """Part of the waiting time in which the device is idle."""
    min_steps: float = 0.5
    """Part of the later half of the steps that must wait: a start-up transient does not last."""
    min_burst: float = 0.3
    """Waiting time as a share of the step, when a single later step waits: less may be one slow
    sample."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Compare the waits for the workers with the device's idle time."""
    rows = np.setdiff1d(loader_rows(analysis, is_loader_of_processes), epochs(analysis).first)
    waiting = _blocked(analysis, rows)
    share = measure(waiting) / (analysis.step_ns * analysis.steps_on_host)
    lasts = rows.size > 0 and _lasts(analysis, rows, options)
    bursts = share >= options.min_burst and _bursts(analysis, rows, waiting, options)
    if not lasts and not bursts and not _recurs(analysis, rows, options):
        return
    exposed = exposed_ratio(analysis, waiting)
    if share < options.min_share or exposed < options.min_exposed:
        return
    per_step = measure(waiting) // analysis.steps_on_host
    if per_step < (options.min_ns if analysis.has("stacks") else options.min_unseen_ns):
        return
    step, rest = analysis.step_time.mid, max(analysis.step_ns - per_step, 1)
    factor = -(-analysis.step_ns // rest)
    yield Hit(
        message=f"The main process waits {duration(per_step)} of each step for the DataLoader's "
        f"workers ({percent(min(share, 1.0))} of the step); they run in other processes, which "
        "the recording does not show." + ("" if lasts else _IN_BURSTS if bursts else _MAY_HIDE),
        evidence=(
            Evidence("wait_per_step", per_step, "ns"),
            Evidence("wait_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("batch_interval", analysis.step_ns, "ns", "derived"),
            Evidence("rest_of_the_step", rest, "ns", "derived"),
        ),
        locations=analysis.locations(rows, calls=("next",)),
        fix=Fix(
            summary=f"Let the workers deliver {factor} times as fast: raise num_workers (about "
            f"{factor} times as many, within the cores) and prefetch_factor, or make the data "
            "set's __getitem__ cheaper. Record a few batches with num_workers=0 to see where it "
            "spends its time.",
            snippet=loader_call(
                analysis,
                "...",
                "num_workers=os.cpu_count() // ranks_per_host",
                "prefetch_factor=4",
                "persistent_workers=True",
            ),
            reference="https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading",
        ),
        gain=_gain(analysis, waiting, step) if lasts or bursts else _hidden_gain(analysis, waiting),
        confidence=0.9 if lasts else 0.6 if bursts else 0.4,
        claims=waiting,
        at_most="critical" if lasts or bursts else "medium",
    )


_IN_BURSTS = (
    " Not every step waits: the workers deliver in bursts, all of them at about the same time, so "
    "one step waits for as long as the next ones save."
)
_MAY_HIDE = (
    " Not every step waits: profiling slows the main process down to about the pace of its "
    "workers, so without the profiler it may wait longer."
)


def _gain(analysis: Analysis, waiting: Intervals, step: int) -> Gain:
    return analysis.gain(
        Change(host_cut=waiting, step_floor_ns=step // 2),
        Change(host_cut=waiting, step_floor_ns=step // 4),
        Change(host_cut=waiting),
    )


def _hidden_gain(analysis: Analysis, waiting: Intervals) -> Gain:
    """The queue ran empty, so the workers deliver at about the pace of the recorded steps.

    They were not slowed down by the profiler, the main process was. At best all that it is faster
    without the profiler is waiting today; the likely gain lies in the middle.
    """
    gain = analysis.gain(Change(host_cut=waiting))
    likely, _, fastest = analysis.deflations
    now = analysis.step_ns
    mid, high = (
        now
        / analysis.what_if.base_ns(deflate)
        * analysis.speedup(Change(host_cut=waiting), deflate)
        for deflate in (likely, fastest)
    )
    mid = max(float(np.sqrt(mid * gain.mid)), gain.mid)
    return msgspec.structs.replace(
        gain, mid=round(mid, 3), high=round(max(high, gain.high, mid), 3)
    )


def _blocked(analysis: Analysis, rows: IntArray) -> Intervals:
    """The part of these ranges in which the thread waits for the queue; all, without stacks."""
    loading = analysis.extent(rows)
    if not analysis.has("stacks"):
        return loading
    thread = analysis.trace.column("thread")
    waits = analysis.matching(is_wait)
    waits = waits[np.isin(thread[waits], np.unique(thread[rows]))]
    return intersect(analysis.extent(waits), loading)


def _lasts(analysis: Analysis, rows: IntArray, options: Thresholds) -> bool:
    """Do the later steps still wait, or did only the first ones, until the queue was full?"""
    steps = analysis.trace.steps
    at = steps.of(analysis.trace.column("ts_ns")[rows])
    waits = np.bincount(at[at >= 0], analysis.trace.column("dur_ns")[rows][at >= 0], steps.count)
    late = waits[steps.count // 2 :]
    return bool((late >= options.min_share * analysis.step_ns).mean() >= options.min_steps)


def _bursts(analysis: Analysis, rows: IntArray, waiting: Intervals, options: Thresholds) -> bool:
    """Does a batch come late after one that was ready? The queue was filled before, so no start-up.

    Workers that have nothing else to do between two batches than to fetch the next one come too
    late for it: that needs no second wait to be told.
    """
    if not analysis.has("stacks"):
        return False
    ts, dur = analysis.trace.column("ts_ns")[rows], analysis.trace.column("dur_ns")[rows]
    late = Coverage(waiting).between(ts, ts + dur) >= options.min_burst * analysis.step_ns
    ready = np.flatnonzero(~late)
    return bool(ready.size > 0 and late[ready[0] :].any())


def _recurs(analysis: Analysis, rows: IntArray, options: Thresholds) -> bool:
    """Do half of the steady steps wait, though not the later ones? Only frames tell waiting."""
    if rows.size == 0 or not analysis.has("stacks"):
        return False
    steps, first = analysis.trace.steps, analysis.times.steady[0]
    waiting = _blocked(analysis, rows)
    per_step = Coverage(waiting).between(steps.edges[:-1], steps.edges[1:])[first:]
    least = max(options.min_ns, options.min_share * analysis.step_ns)
    return bool((per_step >= least).mean() >= options.min_steps)


def _starved(t: TraceBuilder) -> None:
    for step in range(6):
        at = step * 10_000
        t.step(at, 10_000)
        t.loader(at, 7_000, workers=True)
        t.kernel("gemm", at + 7_100, 2_500, launch_at=at + 7_050)


def _in_bursts(t: TraceBuilder) -> None:
    at = 0.0
    for step in range(4):
        wait = 40_000.0 if step == 2 else 100.0
        t.step(at, wait + 6_000)
        t.python("train.py(10): step", at + 1, wait + 5_990)
        t.loader(at + 2, wait, workers=True)
        t.python("<built-in method poll of select.poll object>", at + 3, wait - 10)
        t.kernel("gemm", at + wait + 100, 2_500, launch_at=at + wait + 50)
        at += wait + 6_000


def _fills_up(t: TraceBuilder) -> None:
    for step in range(6):
        at = step * 10_000
        t.step(at, 10_000)
        t.loader(at, 7_000 if step == 0 else 100, workers=True)
        t.kernel("gemm", at + 7_100, 9_500, launch_at=at + 7_050)


RULE = Rule(
    code="DL102",
    name="dataloader-starved-workers",
    class_="data_loading",
    summary="The DataLoader's workers do not keep up, and the device waits for the batch.",
    check=check,
    options=Thresholds(),
    evidence="ET",
    remedies=("dataloader-workers", "prefetch-factor"),
    gain_of=("dataloader-workers",),
    references=("https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading",),
    examples=(
        Example("workers that are late in every step", _starved, fires=True),
        Example("all workers late together, once in the recording", _in_bursts, fires=True),
        Example("one long wait until the queue is filled", _fills_up, fires=False),
    ),
)
