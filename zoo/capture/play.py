"""Run one planted program of the zoo in a plain loop, as a user's script would.

python -m zoo.capture.play NAME [--seconds 20] [--fixed]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import zoo.programs  # noqa: F401
from zoo import harness


def prepared(name: str, fixed: bool) -> Callable[[], object]:
    """A program's step, ready to be called."""
    if not harness.DRY:
        harness.torch.cuda.set_device(harness.DEV)
    harness.fresh()
    return harness.CASES[name].build(fixed)


def truth(name: str, seconds: float = 1.5, repeats: int = 3) -> dict[str, object]:
    """True, pipelined step time without any profiler, and what is planted where.

    Steps are run for a time, not counted in advance: every n-th of them may be slow.
    """
    step, runs, count, took = prepared(name, fixed=False), [], 0, 0.0
    for _ in range(5):
        step()
    for _ in range(repeats):
        harness.sync()
        start, done = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            step()
            done += 1
        harness.sync()
        elapsed = time.perf_counter() - start
        runs.append(elapsed / done * 1e3)
        count, took = count + done, took + elapsed
    case = harness.CASES[name]
    known = {"class": case.cls, "also": case.also, "codes": case.codes}
    return {"ms": took / count * 1e3, "runs": runs, "plant": harness.find_plant(case), **known}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    if harness.WORLD > 1:
        options = {} if harness.DRY else {"device_id": harness.DEV}
        harness.dist.init_process_group("gloo" if harness.DRY else "nccl", **options)
    step = prepared(args.name, args.fixed)
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
