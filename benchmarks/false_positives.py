"""How often is a program called faster or slower than itself?

    python -m benchmarks.false_positives [--runs 120] [--comparisons 200] [--keep FOLDER]

Runs one small CPU program many times, each time in a fresh process and recorded with
torch.profiler, and compares runs of it with each other: one against one, three against three
and five against five, interleaved as a careful person would (A B A B A B). Every outcome other
than "no difference" or "inconclusive" is a false positive.

The unprofiled step times of the same processes are compared as `verify` and `tune` do it.
Needs torch.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from kinetoscope.compare import compare
from kinetoscope.engine import diagnose
from kinetoscope.result import Diagnosis

PROGRAM = """
import json, sys, time, torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
torch.manual_seed(0); torch.set_num_threads(1)
layers = nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(128, 256), torch.randint(0, 10, (128,))
def step():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
for _ in range(30): step()
times = []
for _ in range(100):
    start = time.perf_counter_ns(); step(); times.append(time.perf_counter_ns() - start)
trace, steps = sys.argv[1:]
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=3, active=20),
             on_trace_ready=lambda p: p.export_chrome_trace(trace), record_shapes=True) as prof:
    for _ in range(23): step(); prof.step()
json.dump(times, open(steps, "w"))
"""


def record(folder: Path, runs: int) -> None:
    """Run the program, keeping a result and the unprofiled step times of each run."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    for number in range(runs):
        result = folder / f"run_{number:03}.result.json"
        if result.exists():
            continue
        trace, steps = folder / "trace.json.gz", folder / f"run_{number:03}.steps.json"
        subprocess.run([sys.executable, str(program), str(trace), str(steps)], check=True)
        from kinetoscope.report import render

        result.write_text(render(diagnose([trace]), "json"))
        print(f"\r{number + 1}/{runs}", end="", file=sys.stderr, flush=True)


def pairs(runs: int, size: int, comparisons: int) -> list[tuple[list[int], list[int]]]:
    """Interleaved sides of `size` runs: A B A B ..., starting at each run, at several strides."""
    found = []
    for stride in range(1, runs):
        for first in range(runs - stride * (2 * size - 1)):
            chosen = [first + stride * k for k in range(2 * size)]
            found.append((chosen[0::2], chosen[1::2]))
            if len(found) == comparisons:
                return found
    return found


def table(folder: Path, comparisons: int) -> list[str]:
    """Compare, and return the rows of the table."""
    from kinetoscope.result.saved import decode

    files = sorted(folder.glob("*.result.json"))
    results = [decode(f.read_bytes(), name=f.name) for f in files]
    steps = [json.loads(f.read_text()) for f in sorted(folder.glob("*.steps.json"))]
    rows = [
        "| what | runs a side | comparisons | faster or slower | no difference | inconclusive |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for size in (1, 3, 5):
        chosen = pairs(len(results), size, comparisons)
        rows.append(_row("compare, profiled", size, Counter(_compared(results, p) for p in chosen)))
    for size in (3, 5, 8):
        chosen = pairs(len(steps), size, comparisons)
        rows.append(_row("tune, unprofiled", size, Counter(_tuned(steps, p) for p in chosen)))
    return rows


def _compared(results: list[Diagnosis], pair: tuple[list[int], list[int]]) -> str:
    return compare(*([results[i] for i in side] for side in pair)).verdict.outcome


def _tuned(steps: list[list[int]], pair: tuple[list[int], list[int]]) -> str:
    from kinetoscope.experiments.verdict import interval, outcome

    ratio = interval(*([steps[i] for i in side] for side in pair))
    return outcome(ratio)


def _row(what: str, size: int, outcomes: Counter[str]) -> str:
    total = sum(outcomes.values())
    wrong = outcomes["faster"] + outcomes["slower"]
    return (
        f"| {what} | {size} | {total} | {wrong} ({wrong / total:.1%}) "
        f"| {outcomes['no_difference']} | {outcomes['inconclusive']} |"
    )


def main() -> None:
    """Record, compare, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=120)
    parser.add_argument("--comparisons", type=int, default=200)
    parser.add_argument("--keep", type=Path, help="keep the runs here, and use those that are")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        record(folder, args.runs)
        print("\n".join(table(folder, args.comparisons)))


if __name__ == "__main__":
    main()
