"""How well a replay without a change reproduces the recorded step, for every recording given.

    python -m benchmarks.replay_error FOLDER [FOLDER ...] [--markdown FILE]

A folder holds recordings, single ones and sets of ranks (`NAME.rank0.json.gz`, ...). Ranks that
can be joined at their collectives are replayed together as well.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kinetoscope.analysis import Analysis
from kinetoscope.analysis.job import leading
from kinetoscope.errors import KinetoscopeError
from kinetoscope.trace.job import open_paths
from kinetoscope.units import duration

_RANK = re.compile(r"\.rank\d+(?=\.)")
HEADS = ("recording", "ranks", "events", "recorded step", "replayed", "error", "together", "time")


@dataclass(frozen=True)
class Row:
    """One recording: error of the replay, of the ranks together if joined, and the time it took."""

    name: str
    ranks: int
    events: int
    recorded_ns: int
    error: float
    together: float | None
    seconds: float

    def cells(self) -> tuple[str, ...]:
        """The row for a table."""
        return (
            self.name,
            str(self.ranks),
            f"{self.events:,}",
            duration(self.recorded_ns),
            duration(round(self.recorded_ns * (1 + self.error))),
            f"{self.error:+.1%}",
            "" if self.together is None else f"{self.together:+.1%}",
            f"{self.seconds:.2f} s",
        )


def groups(folder: Path) -> Iterator[tuple[str, list[Path]]]:
    """Recordings of a folder; files that differ in their rank alone belong together."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.json.gz")):
        found.setdefault(_RANK.sub("", path.name).removesuffix(".json.gz"), []).append(path)
    yield from found.items()


def measure(name: str, paths: list[Path]) -> Row:
    """Replay one recording; the time is that of modelling and replaying, without the reading."""
    analyses = tuple(Analysis(trace) for trace in open_paths(paths).traces)
    for analysis in analyses:
        analysis.peers = tuple(a for a in analyses if a is not analysis)
    lead = leading(analyses)
    recorded = lead.step_ns
    began = time.perf_counter()
    replayed = lead.what_if.base_ns(0.0)
    joint = lead.what_if.job_base_ns(0.0) if lead.what_if.job is not None else None
    return Row(
        name=name,
        ranks=len(analyses),
        events=sum(len(a.trace) for a in analyses),
        recorded_ns=recorded,
        error=replayed / max(recorded, 1) - 1,
        together=joint / max(recorded, 1) - 1 if joint is not None else None,
        seconds=time.perf_counter() - began,
    )


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}"]
    lines += [f"| {' | '.join(row.cells())} |" for row in rows]
    return "\n".join(lines)


def summary(rows: list[Row]) -> str:
    """Counts by size of the error."""
    errors = [abs(row.error) for row in rows]
    inside = sum(error <= 0.05 for error in errors)
    return (
        f"{len(rows)} recordings: {inside} within 5 %, "
        f"{sum(error <= 0.10 for error in errors)} within 10 %; "
        f"median {statistics.median(errors):.2%}, worst {max(errors):.1%}."
    )


def main() -> None:
    """Print the table; write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    given = parser.parse_args()
    rows = []
    for folder in given.folders:
        for name, paths in groups(folder):
            try:
                rows.append(measure(name, paths))
            except KinetoscopeError as error:
                print(f"{name}: {error}")
    text = f"{table(rows)}\n\n{summary(rows)}\n"
    print(text)
    if given.markdown:
        given.markdown.write_text(text)


if __name__ == "__main__":
    main()
