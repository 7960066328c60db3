"""How often is a program called faster or slower than itself, and how often is a change seen?

    python -m benchmarks.false_positives [--rounds 25] [--comparisons 200] [--keep FOLDER]

Runs one small CPU program many times, each time in a fresh process and recorded with
torch.profiler, in turns with the same program of 5 % and 10 % more layers: plain, 5 %, plain,
10 %, plain, ... Runs are compared one against one, three against three and five against five,
interleaved as a careful person would (A B A B A B).

*False positives*: plain against plain; every outcome other than "no difference" or "inconclusive".
*Power*: plain against a longer one; how often "slower" is said. What the layers truly cost is
measured by the unprofiled steps of all runs together. `--simulated` shows the power for known
noise, with runs made of random numbers.

The unprofiled step times of the same processes are compared as `verify` and `tune` do it.
Needs torch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from kinetoscope.compare import compare
from kinetoscope.compare.outcome import outcome_of
from kinetoscope.compare.timing import Run, timing
from kinetoscope.engine import diagnose
from kinetoscope.result import Diagnosis

PROGRAM = """
import json, sys, time, torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
trace, steps, layers = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.manual_seed(0); torch.set_num_threads(1)
blocks = [part for _ in range(layers) for part in (nn.Linear(192, 192), nn.ReLU())]
model = nn.Sequential(*blocks, nn.Linear(192, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(64, 192), torch.randint(0, 10, (64,))
def step():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
for _ in range(15): step()
times = []
for _ in range(60):
    start = time.perf_counter_ns(); step(); times.append(time.perf_counter_ns() - start)
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=3, active=20),
             on_trace_ready=lambda p: p.export_chrome_trace(trace), record_shapes=True) as prof:
    for _ in range(23): step(); prof.step()
json.dump(times, open(steps, "w"))
"""
LAYERS = {"plain": 20, "5 %": 21, "10 %": 22}
ORDER = ("plain", "5 %", "plain", "10 %")
"""One round."""
SEED = 11
HEADS = (
    *("what", "change", "runs a side", "comparisons"),
    *("faster", "slower", "no difference", "inconclusive"),
)


@dataclass(frozen=True)
class Measured:
    """One run: its diagnosis, and its unprofiled step times in ns."""

    number: int
    layers: int
    result: Diagnosis
    steps: list[int]


def record(folder: Path, rounds: int) -> None:
    """Run the programs, keeping a result and the unprofiled step times of each run."""
    from kinetoscope.report import render

    program = folder / "program.py"
    program.write_text(PROGRAM)
    plan = [LAYERS[name] for _ in range(rounds) for name in ORDER]
    for number, layers in enumerate(plan):
        stem = f"run_{number:03}.{layers}"
        result = folder / f"{stem}.result.json"
        if result.exists():
            continue
        trace, steps = folder / "trace.json.gz", folder / f"{stem}.steps.json"
        command = [sys.executable, str(program), str(trace), str(steps), str(layers)]
        subprocess.run(command, check=True)
        result.write_text(render(diagnose([trace]), "json"))
        print(f"\r{number + 1}/{len(plan)}", end="", file=sys.stderr, flush=True)


def load(folder: Path) -> list[Measured]:
    """Return what was recorded, in order."""
    from kinetoscope.result.saved import decode

    found = []
    for file in sorted(folder.glob("run_*.result.json")):
        number, layers = file.name.removeprefix("run_").split(".")[:2]
        steps = json.loads(file.with_name(f"run_{number}.{layers}.steps.json").read_text())
        result = decode(file.read_bytes(), name=file.name)
        found.append(Measured(int(number), int(layers), result, steps))
    return found


Pair = tuple[list[Measured], list[Measured]]


def same_pairs(plain: list[Measured], size: int, most: int) -> list[Pair]:
    """Random sides of `size` plain runs in turns: of each two neighbours one a side."""
    random, found = Random(SEED), []
    for _ in range(most):
        chosen = sorted(random.sample(range(len(plain)), 2 * size))
        couples = [random.sample(chosen[i : i + 2], 2) for i in range(0, 2 * size, 2)]
        found.append(([plain[a] for a, _ in couples], [plain[b] for _, b in couples]))
    return found


def other_pairs(plain: list[Measured], other: list[Measured], size: int, most: int) -> list[Pair]:
    """Plain runs against longer ones made next to them."""
    before = {run.number: run for run in plain}
    couples = [(before[run.number - 1], run) for run in other]
    random, found = Random(SEED), []
    for _ in range(most):
        chosen = [couples[i] for i in sorted(random.sample(range(len(couples)), size))]
        found.append(([a for a, _ in chosen], [b for _, b in chosen]))
    return found


# ---- runs made of random numbers, whose noise is known -------------------------------------

STEPS, STEP_SD = 20, 0.01


def simulated(most: int) -> list[str]:
    """Power where two runs of one program differ by a known amount, of a program on a device."""
    rows = [
        "| runs differ by | change | runs a side | comparisons | seen | no difference |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    random = np.random.default_rng(SEED)
    for sd in (0.005, 0.01, 0.02, 0.05):
        for change in (0.0, 0.05, 0.10):
            for size in (1, 3, 5):
                found = Counter(_simulated(random, sd, change, size) for _ in range(most))
                seen = (found["faster"] + found["slower"]) / most
                rows.append(
                    f"| {sd:.1%} | {change:+.0%} | {size} | {most} | {seen:.1%} "
                    f"| {found['no_difference'] / most:.1%} |"
                )
    return rows


def _simulated(random: np.random.Generator, sd: float, change: float, size: int) -> str:
    def run(pace: float) -> Run:
        mean = 1e7 * pace * np.exp(random.normal(0, sd))
        periods = mean * np.exp(random.normal(0, STEP_SD, STEPS))
        middle = float(periods.mean())
        return Run(periods, middle, middle, middle)

    sides = [[run(pace) for _ in range(size)] for pace in (1.0, 1.0 + change)]
    return outcome_of(timing(*sides, same_options=True).speedup)


def table(runs: list[Measured], most: int) -> list[str]:
    """Compare, and return the rows of the table."""
    by_name = {name: [r for r in runs if r.layers == n] for name, n in LAYERS.items()}
    plain = by_name["plain"]
    middle = statistics.median(_pace(run) for run in plain)
    rows = [
        f"| {' | '.join(HEADS)} |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for what, judged, sizes in (("compare", _compared, (1, 3, 5)), ("tune", _tuned, (3, 5, 8))):
        for name, group in by_name.items():
            change = statistics.median(_pace(run) for run in group) / middle - 1
            for size in sizes:
                pairs = (
                    same_pairs(plain, size, most)
                    if name == "plain"
                    else other_pairs(plain, group, size, most)
                )
                title = "none" if name == "plain" else f"{change:+.1%}"
                rows.append(_row(what, title, size, Counter(judged(pair) for pair in pairs)))
    return rows


def _pace(run: Measured) -> float:
    return statistics.median(run.steps)


def _compared(pair: Pair) -> str:
    return compare(*([run.result for run in side] for side in pair)).verdict.outcome


def _tuned(pair: Pair) -> str:
    from kinetoscope.experiments.verdict import interval, outcome

    return outcome(interval(*([run.steps for run in side] for side in pair)))


def _row(what: str, change: str, size: int, outcomes: Counter[str]) -> str:
    total = sum(outcomes.values())
    words = ("faster", "slower", "no_difference", "inconclusive")
    shares = " | ".join(f"{outcomes[word] / total:.1%}" for word in words)
    return f"| {what} | {change} | {size} | {total} | {shares} |"


def main() -> None:
    """Record, compare, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--comparisons", type=int, default=200)
    parser.add_argument("--simulated", action="store_true", help="only runs of random numbers")
    parser.add_argument("--keep", type=Path, help="keep the runs here, and use those that are")
    args = parser.parse_args()
    if args.simulated:
        print("\n".join(simulated(args.comparisons)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        record(folder, args.rounds)
        runs = load(folder)
        spread = statistics.stdev(_pace(r) for r in runs if r.layers == LAYERS["plain"])
        middle = statistics.median(_pace(r) for r in runs if r.layers == LAYERS["plain"])
        print(f"{len(runs)} runs, step {middle / 1e6:.2f} ms, runs differ by {spread / middle:.0%}")
        print("\n".join(table(runs, args.comparisons)))


if __name__ == "__main__":
    main()
