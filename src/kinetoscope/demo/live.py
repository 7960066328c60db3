"""The demo with torch: trains a small program on this CPU, before and after the fix."""

from __future__ import annotations

import difflib
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from kinetoscope.demo.walk import Run, Walk
from kinetoscope.errors import KinetoscopeError
from kinetoscope.trace.readers import read

SLOW = "num_workers=0"
FIXED = "num_workers={}, persistent_workers=True"
BUDGET = "12s"
"""Longest capture of each of the two runs; keeps the demo under a minute on two cores."""
LONGEST_SECONDS = 120


class LiveDemoError(KinetoscopeError):
    """The example could not be trained here."""


def possible() -> bool:
    """Whether torch is installed, without importing it."""
    return find_spec("torch") is not None


def make(folder: Path, say: Callable[[str], None]) -> Walk:
    """Train the example in `folder` under our own capture, as it is; the walk trains it fixed.

    Raises:
        LiveDemoError: the example did not run, for example because torch is broken.
    """
    source = files("kinetoscope.demo") / "program" / "train.py"
    slow = source.read_text(encoding="utf-8")
    program, changed = folder / "train.py", folder / "train_fixed.py"
    program.write_text(slow, encoding="utf-8")
    say("training the example on this CPU, as it is")
    before = _train(program, folder / "before.trace.json.gz")

    def after(workers: int) -> Run:
        changed.write_text(_fixed(slow, workers), encoding="utf-8")
        say("training the example with the fix")
        return _train(changed, folder / "after.trace.json.gz")

    return Walk(
        how=(
            "Trained and recorded just now, on the CPU of this machine, by "
            f"`kinetoscope run --stop-after {program}`."
        ),
        program=program,
        before=before,
        change=lambda workers: _difference(slow, workers),
        after=after,
    )


def _train(program: Path, trace: Path) -> Run:
    """Capture the program until enough is recorded; its baseline is the time of a step."""
    options = ["--stop-after", "--quiet", "--budget", BUDGET, "-o", str(trace)]
    command = [sys.executable, "-W", "ignore", "-m", "kinetoscope", "run", *options, str(program)]
    try:
        done = subprocess.run(  # noqa: S603 - our own script
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise LiveDemoError(f"the example took more than {LONGEST_SECONDS} s") from error
    if done.returncode != 0 or not trace.exists():
        raise LiveDemoError(f"the example could not be trained here: {_reason(done.stderr)}")
    captured = read(trace).sidecar
    if captured is None or captured.baseline is None:
        raise LiveDemoError("the example was not captured: no step without the profiler")
    return Run(trace, captured.baseline.step_ns / 1e6, captured=True)


def _reason(errors: str) -> str:
    """What the program died of: the end of its traceback, before our own messages."""
    lines = [line for line in errors.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith(("kinetoscope:", " "))]
    return (own or lines or ["no message"])[-1]


def _fixed(slow: str, workers: int) -> str:
    return slow.replace(SLOW, FIXED.format(workers))


def _difference(slow: str, workers: int) -> tuple[str, ...]:
    fixed = _fixed(slow, workers)
    lines = difflib.unified_diff(slow.splitlines(), fixed.splitlines(), n=0, lineterm="")
    return tuple(line for line in lines if not line.startswith(("---", "+++", "@@")))
