"""Correlation ids of several processes in one file.

Each process numbers its launches on its own, so in a merged file the same id means different
launches. The process is folded into the id (`id + (process << 40)`), for the host calls by their
pid and for a device event by the launch that it can belong to.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kinetoscope.trace.kinds import RUNTIME_KINDS, Kind

Array = npt.NDArray[Any]

_SHIFT = 40


def separate(
    corr: Array, ts: Array, kind: Array, thread: Array, process: Array, device: Array
) -> None:
    """Make `corr` unique over the processes of a file, in place.

    Does nothing unless at least two processes with runtime calls use the same id. A device event
    whose id several processes used goes to the process that its device fits best; without such a
    device to the latest launch that began before it.

    Args:
        corr: ids, -1 for none.
        ts: start, ns, ascending.
        kind: `Kind`.
        thread: index of the thread.
        process: number of the process of each thread.
        device: device of each thread, -1 for host threads.
    """
    linked = corr > 0
    host = linked & np.isin(kind, RUNTIME_KINDS)
    owner = process[thread]
    owners = np.unique(owner[host])
    if len(owners) < 2 or not _collide(corr[host], owner[host]):
        return
    rows = np.flatnonzero(linked & (kind >= Kind.KERNEL))
    calls = np.flatnonzero(host)
    begun = np.stack(
        [_begun(corr, ts, calls[owner[calls] == each], rows) for each in owners.tolist()]
    )
    chosen = begun.argmax(axis=0)
    of_device = device[thread[rows]]
    for number, which in _by_device(begun, of_device).items():
        mine = (of_device == number) & (begun[which] >= 0)
        chosen[mine] = which
    found = np.isin(corr[rows], corr[calls])
    corr[rows[found]] |= owners[chosen[found]].astype(np.int64) << _SHIFT
    corr[calls] |= owner[calls].astype(np.int64) << _SHIFT


def _begun(corr: Array, ts: Array, calls: Array, rows: Array) -> Array:
    """Start of the latest of these calls with each event's id that began before it; -1: none."""
    order = calls[np.lexsort((ts[calls], corr[calls]))]
    keys = corr[order]
    low = np.searchsorted(keys, corr[rows], side="left")
    high = np.searchsorted(keys, corr[rows], side="right")
    result = np.full(rows.size, -1, dtype=np.int64)
    at = np.full(rows.size, -1, dtype=np.int64)
    for back in range(int((high - low).max(initial=0))):
        i = high - 1 - back
        fits = (at < 0) & (i >= low) & (ts[order[np.maximum(i, 0)]] <= ts[rows])
        at[fits] = order[i[fits]]
    result[at >= 0] = ts[at[at >= 0]]
    return result


def _by_device(begun: Array, device: Array) -> dict[int, int]:
    """The process of each device, when there are as many devices as processes.

    Ranks count their launches alike, so that an id often fits several. A device belongs to the
    process with most launches that can be its own; among equals in the order of both.
    """
    devices = np.unique(device)
    if devices.size != begun.shape[0]:
        return {}
    fits = np.stack([(begun[:, device == d] >= 0).sum(axis=1) for d in devices])
    result: dict[int, int] = {}
    free = list(range(begun.shape[0]))
    for i, number in enumerate(devices.tolist()):
        best = max(free, key=lambda which: (int(fits[i, which]), -which))
        result[number] = best
        free.remove(best)
    return result


def _collide(corr: Array, owner: Array) -> bool:
    order = np.lexsort((owner, corr))
    ids, owners = corr[order], owner[order]
    return bool(((ids[1:] == ids[:-1]) & (owners[1:] != owners[:-1])).any())
