"""Run one planted program of the zoo in a plain loop, as a user's script would.

python -m zoo.capture.play NAME [--seconds 20] [--truth FILE] [--fixed]

`--truth` measures the true, pipelined step time first, without any profiler.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import zoo.programs  # noqa: F401
from zoo import harness


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--truth", type=Path)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    case = harness.CASES[args.name]
    if harness.WORLD > 1:
        options = {} if harness.DRY else {"device_id": harness.DEV}
        harness.dist.init_process_group("gloo" if harness.DRY else "nccl", **options)
    if not harness.DRY:
        harness.torch.cuda.set_device(harness.DEV)
    harness.fresh()
    step = case.build(args.fixed)
    if args.truth:
        runs = harness.step_ms(step, 0.35, 3)
        plant = harness.find_plant(case)
        truth = {"ms": harness.median(runs), "runs": runs, "plant": plant, "class": case.cls}
        truth |= {"also": case.also, "codes": case.codes}
        args.truth.write_text(json.dumps(truth))
    end = time.monotonic() + args.seconds
    count = 0
    while (
        harness.agree(int(time.monotonic() < end))
        if harness.WORLD > 1
        else (time.monotonic() < end)
    ):
        step()
        count += 1
    harness.sync()
    print(f"{args.name}: done")


if __name__ == "__main__":
    main()
