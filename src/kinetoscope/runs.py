"""From paths to runs: a trace, a saved result, a folder of either, a history file.

A side of a comparison is one run or several repetitions of it. A folder may also hold the ranks
of one job; its files are told apart by what their headers say about the job.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from kinetoscope.compare import CompareOptions, compare
from kinetoscope.engine import DiagnoseOptions, Examined, examine
from kinetoscope.errors import InputError, InputNotFoundError, ResultError, UsageError
from kinetoscope.result import Diagnosis
from kinetoscope.result.comparison import Comparison
from kinetoscope.result.saved import decode

Progress = Callable[[str, int, int], None]

_HEAD_BYTES = 1 << 16
_RESULT = re.compile(rb'^\s*\{\s*"schema_version"\s*:')
_WORLD = re.compile(rb'"world_size"\s*:\s*(\d+)')
_RANK = re.compile(rb'"rank"\s*:\s*(\d+)')
_RANK_IN_NAME = re.compile(rb"rank[-_.]?(\d+)", re.IGNORECASE)
_SUFFIXES = (".json", ".json.gz", ".gz", ".trace", ".jsonl")
HISTORY_LENGTH = 10
"""Results of a history file that make up a baseline: the newest ones."""


def compare_runs(
    before: str | Path | Sequence[str | Path],
    after: str | Path | Sequence[str | Path],
    *,
    options: CompareOptions | None = None,
) -> Comparison:
    """Compare two sides, each a path or a list of paths of repeated runs.

    Raises:
        InputError: a path cannot be read.
    """
    return compare(load_side(before), load_side(after), options=options)


def load_side(
    paths: str | Path | Sequence[str | Path],
    *,
    options: DiagnoseOptions | None = None,
    progress: Progress | None = None,
    seen: Callable[[Examined], None] | None = None,
) -> list[Diagnosis]:
    """Return the runs of a side, traces diagnosed.

    Args:
        paths: a trace, a saved result, a folder of repeated runs or of the ranks of one run, a
            folder of such folders, a history file (`.jsonl`, one result a line), or a list.
        options: for the diagnosis of traces.
        progress: called while traces are read.
        seen: called with the analyses of each trace, for what a saved result does not hold.

    Raises:
        InputError: a path cannot be read, or a folder holds no run.
        UsageError: a real step time for what is diagnosed already.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given:
        raise InputNotFoundError("No input given.", "Name a trace, a saved result or a folder.")

    diagnosed = 0

    def run(files: Sequence[Path]) -> Diagnosis:
        nonlocal diagnosed
        found = examine(files, options=options, progress=progress)
        diagnosed += 1
        if seen is not None:
            seen(found)
        return found.diagnosis

    runs = [result for path in given for result in _load(Path(path), run)]
    if options is not None and options.real_step_ms is not None and diagnosed < len(runs):
        raise UsageError(
            f"the step time of {given[0]} is settled: it is a saved result",
            hint="Give the traces; or save them again: `kinetoscope analyze --real-step-ms X`.",
        )
    return runs


_Run = Callable[[Sequence[Path]], Diagnosis]


def _load(path: Path, run: _Run) -> list[Diagnosis]:
    if path.is_dir():
        return _load_folder(path, run)
    if path.name.endswith(".jsonl"):
        return _history(path)
    if is_result(path):
        return [_saved(path)]
    return [run([path])]


def _saved(path: Path) -> Diagnosis:
    """A saved result by its own name: that of the recording may be the same on both sides."""
    found = decode(path.read_bytes(), name=str(path))
    inputs = tuple(msgspec.structs.replace(info, path=str(path)) for info in found.inputs)
    return msgspec.structs.replace(found, inputs=inputs)


def _load_folder(folder: Path, run: _Run) -> list[Diagnosis]:
    """Saved results, else traces, else sub-folders; each is a run unless traces are ranks."""
    visible = sorted(p for p in folder.iterdir() if p.name[0] != ".")
    files = [p for p in visible if p.is_file() and p.name.lower().endswith(_SUFFIXES)]
    results = [p for p in files if is_result(p)]
    if results:
        return [_saved(p) for p in results]
    if files:
        return [run(files)] if are_ranks(files) else [run([p]) for p in files]
    found = [result for p in visible if p.is_dir() for result in _load_folder(p, run)]
    if not found:
        raise InputError(
            f"{folder} holds neither results nor traces",
            "Name a folder of result.json files, of traces, or of one folder a run.",
        )
    return found


def are_ranks(files: Sequence[Path]) -> bool:
    """Whether these traces are the ranks of one job, by their headers, else by `rank` in names."""
    if len(files) < 2:
        return False
    heads = [_head(path) for path in files]
    worlds = [_number(_WORLD, head) for head in heads]
    ranks = [_number(_RANK, head) for head in heads]
    if min(worlds) > 1 and min(ranks) >= 0:
        return len(set(ranks)) == len(ranks)
    named = [_number(_RANK_IN_NAME, path.name.encode()) for path in files]
    return min(named) >= 0 and len(set(named)) == len(named)


def _number(pattern: re.Pattern[bytes], text: bytes) -> int:
    """The number that a pattern finds; -1: none."""
    match = pattern.search(text)
    return int(match[1]) if match else -1


def is_result(path: Path) -> bool:
    """Whether a file is one of our results, by its first bytes."""
    return bool(_RESULT.match(_head(path)))


def _head(path: Path) -> bytes:
    """The first bytes of a file, unpacked; what cannot be read is left to the reader to explain."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        if packed:
            with gzip.open(path) as unpacked:
                return unpacked.read(_HEAD_BYTES)
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except (OSError, EOFError, zlib.error):
        return b""


def _history(path: Path) -> list[Diagnosis]:
    """The newest results of a history file, one a line."""
    try:
        lines = [line for line in path.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise InputNotFoundError(
            f"{path} cannot be read: {error.strerror}",
            hint="`kinetoscope check --append` starts a history file.",
        ) from error
    if not lines:
        raise ResultError(f"{path} holds no result", hint="Append one: `check ... --append`.")
    first = max(len(lines) - HISTORY_LENGTH, 0)
    return [
        decode(line, name=f"{path}:{first + number}")
        for number, line in enumerate(lines[first:], start=1)
    ]
