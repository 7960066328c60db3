"""The demo with torch: trains a small program on this CPU, before and after the fix."""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from kinetoscope.demo.walk import Run, Walk
from kinetoscope.errors import KinetoscopeError

SLOW = "num_workers=0"
FIXED = "num_workers=4, persistent_workers=True"
LONGEST_SECONDS = 120


class LiveDemoError(KinetoscopeError):
    """The example could not be trained here."""


def possible() -> bool:
    """Whether torch is installed, without importing it."""
    return find_spec("torch") is not None


def make(folder: Path, say: Callable[[str], None]) -> Walk:
    """Train the example twice in `folder`, as it is and fixed.

    Raises:
        LiveDemoError: the example did not run, for example because torch is broken.
    """
    source = files("kinetoscope.demo") / "program" / "train.py"
    slow = source.read_text(encoding="utf-8")
    program, changed = folder / "train.py", folder / "train_fixed.py"
    program.write_text(slow, encoding="utf-8")
    changed.write_text(slow.replace(SLOW, FIXED), encoding="utf-8")
    say("training the example on this CPU, as it is")
    before = _train(program, folder / "before.trace.json.gz")
    say("training the example with the fix")
    after = _train(changed, folder / "after.trace.json.gz")
    return Walk(
        how="Trained and recorded just now, on the CPU of this machine.",
        program=program,
        change=_difference(slow),
        before=before,
        after=after,
    )


def _train(program: Path, trace: Path) -> Run:
    command = [sys.executable, program.name, "--trace", trace.name]
    try:
        done = subprocess.run(  # noqa: S603 - our own script
            command,
            cwd=program.parent,
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise LiveDemoError(f"the example took more than {LONGEST_SECONDS} s") from error
    match = re.search(r"^step_ms ([0-9.]+)$", done.stdout, re.MULTILINE)
    if done.returncode != 0 or match is None or not trace.exists():
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise LiveDemoError(f"the example could not be trained here: {last}")
    return Run(trace, float(match[1]))


def _difference(slow: str) -> tuple[str, ...]:
    fixed = slow.replace(SLOW, FIXED)
    lines = difflib.unified_diff(slow.splitlines(), fixed.splitlines(), n=0, lineterm="")
    return tuple(line for line in lines if not line.startswith(("---", "+++", "@@")))
