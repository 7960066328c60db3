"""`python -m benchmarks.speed [FILE]`: how fast and how large, against `json.load` and peers."""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.generate import write_trace
from benchmarks.measure import Measurement, measure

_JSON = """
import json, sys
with open(sys.argv[1], "rb") as file:
    print(len(json.load(file)["traceEvents"]))
"""
_LOAD = """
import sys, kinetoscope
print(len(kinetoscope.load(sys.argv[1])))
"""
_LOAD_ALONE = """
import sys, kinetoscope
print(len(kinetoscope.load(sys.argv[1], processes=1)))
"""
_DIAGNOSE = """
import sys, kinetoscope
result = kinetoscope.diagnose([sys.argv[1]])
print(len(result.findings), "findings")
"""
_HTA = """
import sys, logging
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]})
analysis.get_temporal_breakdown(visualize=False)
analysis.get_gpu_kernel_breakdown(visualize=False)
print("temporal and kernel breakdown")
"""
_TRACELENS = """
import sys
from TraceLens import TreePerfAnalyzer
analyzer = TreePerfAnalyzer.from_file(sys.argv[1])
analyzer.get_df_gpu_timeline()
analyzer.get_df_kernel_launchers_summary(analyzer.get_df_kernel_launchers())
print("timeline and launchers")
"""


@dataclass(frozen=True)
class Contender:
    """Something to measure; `module` must be importable for it."""

    name: str
    code: str
    module: str | None = None


CONTENDERS = (
    Contender("json.load", _JSON),
    Contender("kinetoscope load", _LOAD),
    Contender("kinetoscope load, one process", _LOAD_ALONE),
    Contender("kinetoscope load + diagnose", _DIAGNOSE, "kinetoscope.engine"),
    Contender("HTA", _HTA, "hta"),
    Contender("TraceLens", _TRACELENS, "TraceLens"),
)


def main() -> None:
    """Measure and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", help="a trace; generated if left out")
    parser.add_argument("--runs", type=int, default=3, help="runs of each; the median is shown")
    parser.add_argument("--events", type=int, default=400_000, help="size of a generated trace")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kinetoscope-") as folder:
        path = _input(options.file, Path(folder), options.events)
        size = path.stat().st_size
        results = dict(_measure_all(path, options.runs))
    if options.json:
        print(json.dumps({"bytes": size, "results": _plain(results)}, indent=2))
    else:
        print(f"{size / 1e6:.0f} MB of JSON, median of {options.runs} runs\n")
        print("\n".join(_table(results, size)))


def _input(given: Path | None, folder: Path, events: int) -> Path:
    path = folder / "trace.json"
    if given is None:
        write_trace(path, events)
        return path
    with given.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    if not packed:
        return given
    with gzip.open(given) as source, path.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    return path


def _measure_all(path: Path, runs: int) -> Iterator[tuple[str, list[Measurement]]]:
    """All contenders in turn, several times over, so that each meets the same machine."""
    present = [c for c in CONTENDERS if _importable(c.module)]
    rounds = [[measure(c.code, str(path)) for c in present] for _ in range(runs)]
    for number, contender in enumerate(present):
        yield contender.name, [measurements[number] for measurements in rounds]


def _importable(module: str | None) -> bool:
    if module is None:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _plain(results: dict[str, list[Measurement]]) -> dict[str, dict[str, float]]:
    return {
        name: {
            "wall_s": median(m.wall_s for m in runs),
            "cpu_s": median(m.cpu_s for m in runs),
            "peak_bytes": median(m.peak_bytes for m in runs),
        }
        for name, runs in results.items()
        if not runs[0].failed
    }


def _table(results: dict[str, list[Measurement]], size: int) -> Iterator[str]:
    yield "| | wall s | of json.load | CPU s | MB/s | peak MB | of json.load | |"
    yield "|---|---:|---:|---:|---:|---:|---:|---|"
    base = _plain(results)["json.load"]
    for name, runs in results.items():
        if runs[0].failed:
            yield f"| {name} | failed | | | | | | {runs[0].output[:80]} |"
            continue
        own = _plain({name: runs})[name]
        wall, peak = own["wall_s"], own["peak_bytes"]
        cells = (
            f"{wall:.2f}",
            f"{wall / base['wall_s']:.2f}",
            f"{own['cpu_s']:.2f}",
            f"{size / 1e6 / wall:.0f}",
            f"{peak / 1e6:.0f}",
            f"{peak / base['peak_bytes']:.2f}",
            runs[0].output,
        )
        yield f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
