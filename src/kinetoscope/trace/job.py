"""Many ranks: one `Trace` a file, ordered by rank, and what was skipped in a folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kinetoscope.errors import FormatError, InputError, InputNotFoundError
from kinetoscope.trace.merged import split_ranks
from kinetoscope.trace.readers import read
from kinetoscope.trace.readers._ahead import read_ahead
from kinetoscope.trace.trace import Trace

__all__ = ["Job", "open_paths", "rank_from_name"]

Progress = Callable[[str, int, int], None]

_RANK_NAMES = (
    re.compile(r"rank[-_.]?(\d+)", re.IGNORECASE),
    re.compile(r"(?:^|[-_.])worker[-_.]?(\d+)(?=[-_.])", re.IGNORECASE),
    re.compile(r"[-_.](?:dp|tp|pp|gpu|device|trace)[-_]?(\d+)(?=[-_.])", re.IGNORECASE),
    re.compile(r"(?:^|[-_])(\d{1,5})(?:\.pt)?(?:\.trace)?\.json(?:\.gz)?$", re.IGNORECASE),
)
_SUFFIXES = (".json", ".json.gz", ".gz", ".trace", ".pt.trace", ".txt")


@dataclass(frozen=True)
class Job:
    """The recordings of one run.

    Attributes:
        traces: one a rank, ordered by rank; `header.rank` is set in each.
        skipped: (path, reason) of each file of a folder that is not a readable trace.
        notes: what was done to the files that a reader should know.
    """

    traces: tuple[Trace, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        """Ranks that the run had as far as the headers tell, at least the number of traces."""
        recorded = [t.header.world_size or 0 for t in self.traces]
        return max([len(self.traces), *recorded])


def open_paths(paths: Sequence[Path], *, progress: Progress | None = None) -> Job:
    """Read files and folders of ranks.

    Args:
        paths: files must be readable; in folders what is not a trace is skipped with a reason.
        progress: called with (file, bytes of JSON done in it, 0 or the expected total).

    Raises:
        InputNotFoundError: a path does not exist, or the list is empty.
        InputError: a file given by name cannot be used, or a folder holds no trace.
    """
    if not paths:
        raise InputNotFoundError("No input given.", "Pass a trace file or a folder of traces.")
    traces: list[Trace] = []
    skipped: list[tuple[str, str]] = []
    for path in paths:
        if Path(path).is_dir():
            traces.extend(_read_folder(Path(path), skipped, progress))
        else:
            traces.append(_read(Path(path), progress))
    parts = [split_ranks(trace) for trace in traces]
    ranks = [rank for part, _ in parts for rank in part]
    notes = tuple(note for _, note in parts if note)
    numbered, unnumbered = _by_rank(_one_a_rank(ranks, skipped))
    return Job(numbered, tuple(skipped), notes + unnumbered)


_UNNUMBERED = (
    "Neither the files nor their names say which rank they are of: they are taken as the ranks of "
    "one job. Runs before and after a change belong to `kinetoscope compare`."
)


def _one_a_rank(traces: list[Trace], skipped: list[tuple[str, str]]) -> list[Trace]:
    """Of several recordings whose headers name the same rank, the latest.

    A folder often holds several recordings of one run, or one before and one after a change;
    they are no ranks of a job.
    """
    latest: dict[int, Trace] = {}
    for trace in traces:
        rank = trace.header.rank
        if rank is not None and (rank not in latest or _begin_ns(trace) >= _begin_ns(latest[rank])):
            latest[rank] = trace
    kept = [t for t in traces if t.header.rank is None or latest[t.header.rank] is t]
    for trace in traces:
        if not any(trace is other for other in kept):
            reason = f"an earlier recording of rank {trace.header.rank}: analyze it by itself"
            skipped.append((trace.path, reason))
    return kept


def _begin_ns(trace: Trace) -> int:
    """Absolute time of the first event, ns."""
    return trace.header.base_time_ns + int(trace.column("ts_ns")[0])


def _read_folder(
    folder: Path, skipped: list[tuple[str, str]], progress: Progress | None
) -> Iterator[Trace]:
    found = 0
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name[0] != ".")
    named = [p for p in files if p.name.lower().endswith(_SUFFIXES)]
    ahead = read_ahead(named, lambda path: _read(path, progress))
    for path in files:
        if not path.name.lower().endswith(_SUFFIXES):
            skipped.append((str(path), "not a trace by its suffix"))
            continue
        try:
            trace = ahead[path] if path in ahead else _read(path, progress)
        except InputError as error:
            skipped.append((str(path), error.message))
            continue
        found += 1
        yield trace
    if not found:
        raise FormatError(
            f"{folder} holds no profiler trace.",
            "Pass the folder that the profiler wrote its .json or .json.gz files to.",
        )


def _read(path: Path, progress: Progress | None) -> Trace:
    if progress is None:
        return read(path)
    total = path.stat().st_size if path.exists() else 0
    done = 0

    def report(size: int) -> None:
        nonlocal done
        done += size
        progress(str(path), done, 0 if path.suffix == ".gz" else total)

    return read(path, progress=report)


def rank_from_name(name: str) -> int | None:
    """The rank that a file name tells: `rank3`, `-rank-3.`, `_3.json`, `trace_3.json`."""
    for pattern in _RANK_NAMES:
        match = pattern.search(name)
        if match:
            return int(match.group(1))
    return None


def _by_rank(traces: Sequence[Trace]) -> tuple[tuple[Trace, ...], tuple[str, ...]]:
    """The traces, each with a rank of its own, and what to say when that is only its position."""
    if len(traces) == 1:
        return tuple(traces), ()
    ranks = _told_ranks(traces)
    numbered = [
        t if t.header.rank == r else replace(t, header=replace(t.header, rank=r))
        for t, r in zip(traces, ranks or range(len(traces)), strict=True)
    ]
    notes = () if ranks else (_UNNUMBERED,)
    return tuple(sorted(numbered, key=lambda t: t.header.rank or 0)), notes


def _told_ranks(traces: Sequence[Trace]) -> list[int]:
    """Ranks from the headers, else from the file names, all distinct; []: neither tells them."""
    headers = [t.header.rank for t in traces]
    names = [rank_from_name(Path(t.path).name) for t in traces]
    merged = [r if r is not None else n for r, n in zip(headers, names, strict=True)]
    for ranks in (headers, merged, names):
        known = [r for r in ranks if r is not None]
        if len(set(known)) == len(traces):
            return known
    return []
