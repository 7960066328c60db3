"""Traces of several ranks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetoscope.testing.builder import TraceBuilder

if TYPE_CHECKING:
    from kinetoscope.trace.job import Job

__all__ = ["JobBuilder"]


class JobBuilder:
    """One `TraceBuilder` a rank.

        job = JobBuilder(2)
        for rank, trace in enumerate(job):
            trace.step(0, 1000).all_reduce(100, 200 + 300 * rank, launch_at=10)
        result = job.open()

    Args:
        ranks: how many ranks there are files of.
        world_size: how many ranks the job had; more than `ranks` when files are missing.
        options: passed on to each `TraceBuilder`.
    """

    def __init__(self, ranks: int, *, world_size: int | None = None, **options: Any) -> None:
        world_size = ranks if world_size is None else world_size
        self._traces = [
            TraceBuilder(rank=rank, world_size=world_size, pid=1000 + rank, **options)
            for rank in range(ranks)
        ]

    def __iter__(self) -> Iterator[TraceBuilder]:
        return iter(self._traces)

    def __len__(self) -> int:
        """Number of ranks."""
        return len(self._traces)

    def rank(self, number: int) -> TraceBuilder:
        """The builder of one rank."""
        return self._traces[number]

    def write(self, folder: str | Path) -> Path:
        """Write `rank<n>.json` files into a folder, which is made if needed; returns it."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for number, trace in enumerate(self._traces):
            trace.write(folder / f"rank{number}.json")
        return folder

    def open(self) -> Job:
        """The job as the real reader sees it."""
        from kinetoscope.trace.job import open_paths

        with tempfile.TemporaryDirectory(prefix="kinetoscope-") as folder:
            return open_paths([self.write(folder)])
