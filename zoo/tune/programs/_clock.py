"""What the programs share: they time themselves when they are run by hand."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

LEAST_STEPS = 3
LONG = 5.0
"""Times the measured time that a warm-up may take."""


def options(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--fixed", action="store_true", help="with the change made by hand")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=0.0, help="print the step time and end")
    parser.add_argument("--turn", type=Path, help="wait until this file exists")
    chosen = parser.parse_args()
    if chosen.turn is not None:
        _wait(chosen.turn)
    return chosen


def _wait(turn: Path) -> None:
    """Torch is imported; another program measures. The device has not been touched yet."""
    Path(f"{turn}.ready{os.environ.get('RANK', '0')}").touch()
    while not turn.exists():
        time.sleep(0.02)
        if not turn.parent.exists():
            raise SystemExit("not needed any more")


def repeat(step: Callable[[int], object], chosen: argparse.Namespace, warm_up: int = 30) -> None:
    """Run steps; with `--seconds`, print their unprofiled mean time after a warm-up.

    The warm-up is cut short, and few steps are measured, where they take long: a change that makes
    each of them much slower needs no more.
    """
    begun, start, first = time.perf_counter(), 0.0, 0
    for index in range(chosen.steps):
        step(index)
        if not chosen.seconds:
            continue
        now = time.perf_counter()
        if not first:
            long = index >= LEAST_STEPS and now - begun > LONG * chosen.seconds
            if index == warm_up or long:
                torch.cuda.synchronize()
                start, first = time.perf_counter(), index
            continue
        if (index - first) % 10 == 0 or (
            index - first >= LEAST_STEPS and now - start > chosen.seconds
        ):
            torch.cuda.synchronize()
            spent = time.perf_counter() - start
            if spent > chosen.seconds:
                if int(os.environ.get("RANK", "0")) == 0:
                    print(f"step_ms {1e3 * spent / (index - first):.4f}", flush=True)
                return
