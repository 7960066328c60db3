"""`kinetoscope tune` on programs with a known right change, next to that change made by hand.

python -m zoo.tune.device --out DIR [--limit SECONDS] [NAME ...]

Prints a table: what tune measured, what the diagnosis predicted, what the change made by hand
gave (unprofiled, in turns), and the verdict of the guards. Everything ends within `--limit`; each
program's result, recording and log lie in DIR, and the table in DIR/table.md.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"

TRIED = {
    "language_fp32": "matmul-precision,autocast",
    "small_kernels": "cuda-graph,compile=default",
    "pointwise_chain": "compile=default,compile=reduce-overhead",
    "near_equal": "autocast,matmul-precision",
    "changing_sizes": "cudnn-benchmark",
    "parallel_unused": "ddp-no-unused-search,ddp-static-graph,ddp-bucket-size=50,ddp-bucket-view",
}
TWO_RANKS = {"parallel_unused"}
SAME_CHANGE = {
    "language_fp32": "matmul-precision=high",
    "small_kernels": "cuda-graph",
    "pointwise_chain": "compile=default",
    "changing_sizes": "cudnn-benchmark",
}
"""The remedy that does what `--fixed` does by hand."""
EXPECTED = {
    "language_fp32": "accepted",
    "small_kernels": "accepted",
    "pointwise_chain": "accepted",
    "near_equal": "changes_result",
    "changing_sizes": "harmful",
    "parallel_unused": "accepted",
}
HEAD = (
    "| program | remedy | status | measured | runs | predicted | by hand | guards | first, again |"
)
READY_S = 90.0


class ByHand:
    """The unchanged and the changed program, all runs started together, measured in turns."""

    def __init__(self, name: str, runs: int, folder: Path) -> None:
        self.name = name
        order = [turn % 2 == 1 for turn in range(runs) for _ in (0, 1)]
        self.fixed = [first ^ bool(at % 2) for at, first in enumerate(order)]
        self.turns = [folder / f"turn{at}" for at in range(len(self.fixed))]
        self.started = [self._start(*pair) for pair in zip(self.fixed, self.turns, strict=True)]

    def _start(self, fixed: bool, turn: Path) -> subprocess.Popen[str]:
        words = [str(PROGRAMS / f"{self.name}.py"), "--seconds", "1.0", "--turn", str(turn)]
        ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        return subprocess.Popen(
            [
                sys.executable,
                *(ranks if self.name in TWO_RANKS else []),
                *words,
                *["--fixed"] * fixed,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def times(self) -> tuple[list[float], list[float]]:
        """Step times in ms, without and with the change."""
        end = time.monotonic() + READY_S
        ranks = 2 if self.name in TWO_RANKS else 1
        for turn in self.turns:
            while len(list(turn.parent.glob(f"{turn.name}.ready*"))) < ranks:
                if time.monotonic() > end:
                    raise SystemExit(f"{self.name} does not start")
                time.sleep(0.05)
        found: dict[bool, list[float]] = {False: [], True: []}
        for fixed, turn, process in zip(self.fixed, self.turns, self.started, strict=True):
            turn.touch()
            out, err = process.communicate()
            step = re.search(r"step_ms ([\d.]+)", out)
            if step is None:
                raise SystemExit(f"{self.name} printed no step time: {err[-2000:]}")
            found[fixed].append(float(step.group(1)))
        return found[False], found[True]


def by_hand(name: str, runs: int) -> tuple[list[float], list[float]]:
    """Step times in ms, unprofiled, without and with the change made by hand."""
    with tempfile.TemporaryDirectory() as folder:
        return ByHand(name, runs, Path(folder)).times()


def tuned(name: str, out: Path, budget: float) -> dict[str, Any] | None:
    """What `kinetoscope tune` says about a program."""
    result = out / f"{name}.json"
    words = ["tune", "--budget", f"{budget:.0f}", "--only", TRIED[name], "--seconds", "0.5"]
    words += ["-o", str(result), "--keep-recording", str(out / f"{name}.trace.json.gz")]
    if name in TWO_RANKS:
        words += ["--nproc-per-node", "2"]
    with (out / f"{name}.log").open("w") as log:
        subprocess.run(
            [sys.executable, "-m", "kinetoscope", *words, str(PROGRAMS / f"{name}.py")],
            stdout=log,
            stderr=log,
            check=False,
        )
    return json.loads(result.read_text()) if result.exists() else None


def span(gain: dict[str, float] | None) -> str:
    return f"{gain['mid']:.2f}x ({gain['low']:.2f} to {gain['high']:.2f})" if gain else "-"


def rows(name: str, found: dict[str, Any], hand: str) -> list[str]:
    lines = []
    for trial in found["trials"]:
        if trial["status"] == "not_applicable":
            lines.append(f"| {name} | {trial['remedy']} | {trial['reason']} | | | | | | |")
            continue
        mine = hand if trial["remedy"] == SAME_CHANGE.get(name) else ""
        guards = ", ".join(f"{g['name']} {g['status']}" for g in trial["guards"]) or "-"
        again = trial["compile_again_s"]
        lines.append(
            f"| {name} | {trial['remedy']} | {trial['status']} | {span(trial['speedup'])} "
            f"| {trial['runs']} | {span(trial['predicted'])} | {mine} | {guards} "
            f"| {trial['compile_s']} s, {'-' if again is None else again} s |"
        )
    return lines


def one(name: str, out: Path, runs: int, until: float) -> list[str]:
    """The lines of one program; `until` is when it must have ended (monotonic, s)."""
    start = time.monotonic()
    hand, lines = "", []
    if name in SAME_CHANGE or name in TWO_RANKS:
        before, after = by_hand(name, runs)
        ratio = statistics.median(before) / statistics.median(after)
        hand = f"{ratio:.2f}x"
        lines.append(f"# {name} by hand: {before} ms -> {after} ms: {hand}")
    # A run that was begun within the budget may end after it.
    found = tuned(name, out, max(until - time.monotonic() - 25.0, 30.0))
    if found is None:
        return [*lines, f"| {name} | no result: see {name}.log | | | | | | | |"]
    lines += rows(name, found, hand)
    states = {trial["status"] for trial in found["trials"]}
    right = "as expected" if EXPECTED[name] in states else "NOT AS EXPECTED"
    lines.append(
        f"# {name}: {EXPECTED[name]} {right}; together "
        f"{span((found['combination'] or {}).get('speedup'))}; {found['sentence']} "
        f"({time.monotonic() - start:.0f} s, {found['runs']} runs)"
    )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=540.0, help="seconds for everything")
    parser.add_argument("--runs", type=int, default=3, help="runs a side by hand")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + args.limit
    names = args.names or list(TRIED)
    print(HEAD, flush=True)
    with (args.out / "table.md").open("a") as table:
        table.write(HEAD + "\n")
        for at, name in enumerate(names):
            share = (end - time.monotonic()) / (len(names) - at)
            for line in one(name, args.out, args.runs, time.monotonic() + share):
                print(line, flush=True)
                table.write(line + "\n")
                table.flush()


if __name__ == "__main__":
    main()
