"""Runs small programs through the command in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRAIN = """
import sys
import torch
from torch import nn

def main(steps):
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(16, 32)
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    return step

print("trained", main(int(sys.argv[1])))
"""


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str
    result: dict[str, Any] | None


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1"}


def capture(
    folder: Path, source: str, *arguments: str, options: tuple[str, ...] = (), **kw: Any
) -> Ran:
    """Write a program and run it through `kinetoscope run`."""
    (folder / "program.py").write_text(source)
    command = [sys.executable, "-m", "kinetoscope", "run", "-o", "result.json", "--budget", "6s"]
    done = subprocess.run(
        [*command, *options, "program.py", *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        **kw,
    )
    path = folder / "result.json"
    found = json.loads(path.read_text()) if path.exists() else None
    return Ran(done.returncode, done.stdout, done.stderr, found)


_MACHINE = ("the program's pace changed", "longer than before", "longer than the others")


def own_problems(problems: Sequence[str]) -> list[str]:
    """Without those that a machine has which others use as well."""
    return [text for text in problems if not any(said in text for said in _MACHINE)]


def draws_the_recording(page: Path) -> bool:
    """Does a page carry what its timeline is drawn from?"""
    text = page.read_text(encoding="utf-8")
    return bool(text.partition('id="view">')[2].partition("<")[0])
