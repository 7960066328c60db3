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


def separate(corr: Array, ts: Array, kind: Array, thread: Array, process: Array) -> None:
    """Make `corr` unique over the processes of a file, in place.

    Does nothing unless at least two processes with runtime calls use the same id. A device event
    whose id several processes used goes to the latest launch that began before it.

    Args:
        corr: ids, -1 for none.
        ts: start, ns, ascending.
        kind: `Kind`.
        thread: index of the thread.
        process: number of the process of each thread.
    """
    linked = corr > 0
    host = linked & np.isin(kind, RUNTIME_KINDS)
    owner = process[thread]
    owners = np.unique(owner[host])
    if len(owners) < 2 or not _collide(corr[host], owner[host]):
        return
    device = np.flatnonzero(linked & (kind >= Kind.KERNEL))
    calls = np.flatnonzero(host)
    order = calls[np.lexsort((ts[calls], corr[calls]))]
    keys = corr[order]
    for row in device.tolist():
        left, right = np.searchsorted(keys, (corr[row], corr[row] + 1))
        if left == right:
            continue
        candidates = order[left:right]
        before = int(np.searchsorted(ts[candidates], ts[row], side="right"))
        corr[row] |= int(owner[candidates[max(before - 1, 0)]]) << _SHIFT
    corr[calls] |= owner[calls].astype(np.int64) << _SHIFT


def _collide(corr: Array, owner: Array) -> bool:
    order = np.lexsort((owner, corr))
    ids, owners = corr[order], owner[order]
    return bool(((ids[1:] == ids[:-1]) & (owners[1:] != owners[:-1])).any())
