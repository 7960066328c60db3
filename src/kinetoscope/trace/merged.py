"""A file that holds the recordings of several ranks: one `Trace` a rank again.

Tools that join the files of a job into one timeline keep each rank's process id. A recording by
the profiler itself has one process that launches; two of them that do are two ranks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from kinetoscope.trace.kinds import DEVICE_WORK, RUNTIME_KINDS, Kind
from kinetoscope.trace.trace import IntArray, Trace

_LEAST_PART = 0.02
"""A process with fewer of the launches (or steps) is a helper, not a rank."""


def split_ranks(trace: Trace) -> tuple[tuple[Trace, ...], str]:
    """The ranks in a file, by device and process, and what to say of it.

    A file of one rank is returned as it is, with nothing to say.

    A device event belongs to the process that launched it. One without a launch goes with its
    lane, when only one process launched there; else nobody can tell, and it is left out.
    """
    process, count = _processes(trace)
    ranks = _that_work(trace, process, count)
    if ranks.size < 2:
        return (trace,), ""
    owner = _owners(trace, process)
    on_device = owner[np.isin(trace.column("kind"), DEVICE_WORK)]
    if on_device.size and not np.isin(ranks, on_device).all():
        return (trace,), (
            f"{trace.path}: {ranks.size} processes launch work, but which device event is whose "
            "cannot be told; give one file a rank."
        )
    first = [_first_device(trace, owner == rank) for rank in ranks.tolist()]
    order = sorted(range(ranks.size), key=lambda i: (first[i], i))
    lost = int(((owner < 0) & (trace.column("device") >= 0)).sum())
    note = f"{trace.path}: {ranks.size} processes launch work, taken for as many ranks"
    if lost:
        note += f"; {lost:,} device events could be of either and are left out"
    parts = tuple(
        _part(trace, owner == int(ranks[i]), process == int(ranks[i]), number)
        for number, i in enumerate(order)
    )
    return parts, f"{note}."


def _processes(trace: Trace) -> tuple[IntArray, int]:
    """Number of the process of each thread, -1 for device lanes; how many there are."""
    number: dict[str, int] = {}
    result = [number.setdefault(t.pid, len(number)) if t.device < 0 else -1 for t in trace.threads]
    return np.array(result, dtype=np.int64), len(number)


def _that_work(trace: Trace, process: IntArray, count: int) -> IntArray:
    """Processes that launch a good part of the work; without a device, those with steps."""
    none = np.empty(0, dtype=np.int64)
    if count < 2:
        return none
    kind, thread = trace.column("kind"), trace.column("thread")
    kinds = RUNTIME_KINDS if np.isin(kind, DEVICE_WORK).any() else (Kind.STEP,)
    mine = process[thread[np.isin(kind, kinds)]]
    each = np.bincount(mine[mine >= 0], minlength=count)
    return np.flatnonzero(each >= max(_LEAST_PART * each.sum(), 1))


def _owners(trace: Trace, process: IntArray) -> IntArray:
    """Process of each event; -1 for a device event that cannot be told."""
    thread = trace.column("thread").astype(np.int64)
    owner = process[thread]
    launch = trace.links.launch
    rows = np.flatnonzero((owner < 0) & (launch >= 0))
    owner[rows] = process[thread[launch[rows]]]
    lanes = process.copy()
    for lane in np.flatnonzero(process < 0).tolist():
        found = np.unique(owner[(thread == lane) & (owner >= 0)])
        if found.size == 1:
            lanes[lane] = found[0]
    return np.where(owner >= 0, owner, lanes[thread])


def _first_device(trace: Trace, mine: IntArray) -> int:
    device = trace.column("device")[mine]
    device = device[device >= 0]
    return int(device.min()) if device.size else 0


def _part(trace: Trace, rows: IntArray, threads: IntArray, rank: int) -> Trace:
    return replace(
        trace,
        events=trace.events.filter(pl.Series(rows)),
        memory=_on_threads(trace.memory, threads),
        failed_requests=_on_threads(trace.failed_requests, threads),
        header=replace(trace.header, rank=rank),
    )


def _on_threads(table: pl.DataFrame, threads: IntArray) -> pl.DataFrame:
    """Rows of a table of memory events whose threads are chosen."""
    if not table.height:
        return table
    return table.filter(pl.Series(threads[table.get_column("thread").to_numpy()]))
