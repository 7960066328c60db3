"""Brings the recordings of all ranks together in one folder."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kinetoscope.capture.ranks import Place

PATIENCE_S = 60.0
"""How long the leading rank waits for the others, after it has ended itself."""
_EVERY_S = 0.1


def rank_name(path: Path, place: Place) -> Path:
    """`trace.json.gz` -> `trace.rank3.json.gz`."""
    stem = path.name[: -len(".json.gz")] if path.name.endswith(".json.gz") else path.stem
    return path.with_name(f"{stem}.rank{place.rank}.json.gz")


def hand_in(trace: Path | None, place: Place, name: str) -> None:
    """Put this rank's recording into the job's folder; a rank without one says so.

    Raises:
        OSError: the folder cannot be written.
    """
    place.folder.mkdir(parents=True, exist_ok=True)
    if trace is None:
        _missing(place.folder, place.rank).touch()
        return
    target = _recorded(place.folder, place.rank, name)
    part = target.with_name(f".{target.name}.part")
    shutil.copyfile(trace, part)
    part.replace(target)


def gather(place: Place, ranks: Sequence[int], name: str, say: Callable[[str], None]) -> list[Path]:
    """Wait for all ranks and return their recordings; says which ones are missing."""
    until = time.monotonic() + PATIENCE_S
    waiting = set(ranks)
    while True:
        waiting -= {
            rank
            for rank in waiting
            if _recorded(place.folder, rank, name).exists() or _missing(place.folder, rank).exists()
        }
        if not waiting or time.monotonic() > until:
            break
        time.sleep(_EVERY_S)
    found = [p for r in ranks if (p := _recorded(place.folder, r, name)).exists()]
    lost = [str(r) for r in ranks if not _recorded(place.folder, r, name).exists()]
    if lost:
        say(f"no recording of rank {', '.join(lost)}; the result speaks of the others")
    return found


def clear(place: Place) -> None:
    """Remove the job's folder."""
    shutil.rmtree(place.folder, ignore_errors=True)


def _recorded(folder: Path, rank: int, name: str) -> Path:
    return folder / f"{name}.rank{rank}.json.gz"


def _missing(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.nothing"
