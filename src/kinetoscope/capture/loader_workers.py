"""Samples Python frames inside the worker processes of a DataLoader.

A worker gets a thread that looks at its frames a hundred times a second for its first seconds and
writes the counts to a file; nothing is sent through the loader's queues. Works with fork, spawn
and forkserver, since what travels to the worker is a small object that can be pickled.
"""

from __future__ import annotations

import functools
import json
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinetoscope.capture.sampling import FrameSampler, write_table
from kinetoscope.capture.torch_parts import WORKERS

EVERY_S = 0.01
LONGEST_S = 20.0
_WRITE_S = 0.5
_PATTERN = "worker-*.json"


class Watched:
    """Stands for the user's `worker_init_fn`: starts the sampler, then calls it."""

    def __init__(self, original: Callable[[int], Any] | None, folder: str) -> None:
        self.original = original
        self.folder = folder

    def __call__(self, worker: int) -> None:
        """Called by torch in the worker."""
        path = Path(self.folder) / f"worker-{os.getpid()}.json"
        threading.Thread(target=_watch, args=(path,), name="kinetoscope", daemon=True).start()
        if self.original is not None:
            self.original(worker)


def _watch(path: Path) -> None:
    sampler = FrameSampler(EVERY_S)
    sampler.start()
    pause = threading.Event()
    for _ in range(int(LONGEST_S / _WRITE_S)):
        pause.wait(_WRITE_S)
        try:
            write_table(sampler, path)
        except OSError:  # the capture is over and its folder gone
            break
    sampler.stop()


def wrap_workers(
    folder: Path,
    replace: Callable[[Any, str, Any], None],
    started: Callable[[int], None],
) -> None:
    """Let every loader that starts workers from now on have them sampled.

    Args:
        folder: where workers write their counts.
        replace: sets an attribute so that it can be put back.
        started: told how many batches the loader keeps ready.
    """
    original = WORKERS.get()
    if original is None:
        return
    from torch.utils.data import dataloader

    kind = dataloader._MultiProcessingDataLoaderIter

    @functools.wraps(original)
    def begin(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        started(loader.num_workers * (loader.prefetch_factor or 2))
        given = loader.worker_init_fn
        loader.worker_init_fn = Watched(given, str(folder))
        try:
            original(iterator, loader, *args, **kwargs)
        finally:
            loader.worker_init_fn = given

    replace(kind, "__init__", begin)


def collect(folder: Path) -> list[list[Any]]:
    """Counts of all workers together, most sampled first."""
    total: Counter[tuple[Any, ...]] = Counter()
    for path in folder.glob(_PATTERN):
        try:
            rows = json.loads(path.read_text())["table"]
        except (OSError, ValueError, KeyError):
            continue
        for *place, count in rows:
            total[tuple(place)] += count
    return [[*place, count] for place, count in total.most_common(200)]
