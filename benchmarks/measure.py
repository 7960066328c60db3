"""Wall time and peak memory of a piece of Python in a fresh process, its children included."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_INTERVAL_S = 0.02
_AS_INSTALLED = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
"""An installed package is compiled once, not at every start; so are all contenders here."""


@dataclass(frozen=True)
class Measurement:
    """One run.

    Attributes:
        wall_s: from start to exit, interpreter start included.
        cpu_s: user and system time of all processes.
        peak_bytes: highest sum over the processes of what each holds, shared pages split among
            those that share them (PSS), or resident size where the system tells no PSS.
        output: what it printed.
        failed: it ended with an error; `output` is its last line.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int
    output: str
    failed: bool


def measure(code: str, *arguments: str) -> Measurement:
    """Run `python -c code arguments...`."""
    before = os.times()
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_AS_INSTALLED,
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, _tree_bytes(process.pid))
        time.sleep(_INTERVAL_S)
    wall = time.perf_counter() - start
    output, errors = process.communicate()
    after = os.times()
    cpu = sum(after[2:4]) - sum(before[2:4])
    text = output if process.returncode == 0 else errors
    last = text.strip().rpartition("\n")[2]
    return Measurement(wall, cpu, peak, last, process.returncode != 0)


def _tree_bytes(root: int) -> int:
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        total += _process_bytes(pid)
        waiting.extend(_children(pid))
    return total


def _children(pid: int) -> list[int]:
    try:
        return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _process_bytes(pid: int) -> int:
    for name, key in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        try:
            lines = Path(f"/proc/{pid}/{name}").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith(key):
                return int(line.split()[1]) * 1024
    return 0
