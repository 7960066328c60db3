"""`kinetoscope tune` on programs with a known right change, next to that change made by hand.

python -m zoo.tune.device --out DIR [--budget SECONDS] [NAME ...]

Prints a table: what tune measured, what the diagnosis predicted, what the change made by hand
gave (unprofiled, three runs a side in turns), and the verdict of the guards.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"

TRIED = {
    "language_fp32": "matmul-precision,autocast",
    "small_kernels": "cuda-graph,compile=default",
    "pointwise_chain": "compile=default,optimizer-implementation",
    "near_equal": "autocast,dataloader-workers=4,pin-memory",
    "parallel_unused": "ddp-no-unused-search,ddp-static-graph,ddp-bucket-size=50,"
    "ddp-bucket-view,ddp-bf16-gradients",
}
TWO_RANKS = {"parallel_unused"}
SAME_CHANGE = {
    "language_fp32": "matmul-precision",
    "small_kernels": "cuda-graph",
    "pointwise_chain": "compile=default",
}
"""The remedy that does what `--fixed` does by hand."""


def by_hand(name: str, runs: int) -> tuple[float, float]:
    """Step times in ms, unprofiled, without and with the change made by hand."""
    times: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(runs):
        for fixed in (False, True) if turn % 2 == 0 else (True, False):
            words = [str(PROGRAMS / f"{name}.py"), "--seconds", "1.5", *["--fixed"] * fixed]
            ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
            done = subprocess.run(
                [sys.executable, *(ranks if name in TWO_RANKS else []), *words],
                capture_output=True,
                text=True,
                check=False,
            )
            found = re.search(r"step_ms ([\d.]+)", done.stdout)
            if not found:
                print(done.stderr[-2000:], file=sys.stderr)
                raise SystemExit(f"{name} printed no step time")
            times[fixed].append(float(found.group(1)))
    return statistics.median(times[False]), statistics.median(times[True])


def tuned(name: str, out: Path, budget: float) -> dict[str, Any]:
    """What `kinetoscope tune` says about a program."""
    result = out / f"{name}.json"
    words = ["tune", "--budget", str(budget), "--only", TRIED[name], "-o", str(result)]
    words += ["--seconds", "0.6"]
    if name in TWO_RANKS:
        words += ["--nproc-per-node", "2"]
    with (out / f"{name}.log").open("w") as log:
        subprocess.run(
            [sys.executable, "-m", "kinetoscope", *words, str(PROGRAMS / f"{name}.py")],
            stdout=log,
            stderr=log,
            check=False,
        )
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def span(gain: dict[str, float] | None) -> str:
    return f"{gain['mid']:.2f}x ({gain['low']:.2f} to {gain['high']:.2f})" if gain else "-"


def rows(name: str, found: dict[str, Any], before: float, after: float) -> list[str]:
    lines = []
    for trial in found["trials"]:
        if trial["status"] == "not_applicable":
            continue
        same = trial["remedy"].split("=")[0] == SAME_CHANGE.get(name, "").split("=")[0]
        hand = f"{before / after:.2f}x" if same else ""
        guards = ", ".join(f"{g['name']} {g['status']}" for g in trial["guards"]) or "-"
        lines.append(
            f"| {name} | {trial['remedy']} | {trial['status']} | {span(trial['speedup'])} "
            f"| {trial['runs']} | {span(trial['predicted'])} | {hand} | {guards} "
            f"| {trial['compile_s']} s |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=75.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    print("| program | remedy | status | measured | runs | predicted | by hand | guards | start |")
    for name in args.names or TRIED:
        start = time.monotonic()
        before, after = by_hand(name, args.runs)
        print(f"# {name}: {before:.3f} ms -> {after:.3f} ms by hand", flush=True)
        try:
            found = tuned(name, args.out, args.budget)
        except OSError as error:
            print(f"| {name} | no result: {error} |", flush=True)
            continue
        for line in rows(name, found, before, after):
            print(line)
        together = found["combination"]
        if together:
            print(f"# together: {together['remedy']} {span(together['speedup'])}")
        print(f"# {time.monotonic() - start:.0f} s, {found['runs']} runs", flush=True)


if __name__ == "__main__":
    main()
