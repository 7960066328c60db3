"""Runs the program in fresh processes, one after the other, and keeps count of the time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinetoscope.errors import KinetoscopeError
from kinetoscope.experiments.remedy import Facts, Remedy, named

Chosen = tuple[tuple[Remedy, str], ...]
"""Remedies with their parameters, installed together; () is the unchanged program."""

LAST_LINES = 5


class ProgramError(KinetoscopeError):
    """The program itself, unchanged, cannot be measured."""


@dataclass(frozen=True)
class Outcome:
    """What one process reported.

    Attributes:
        report: the child's report; None when it wrote none.
        error: why the run says nothing; "" when it is fine.
        seconds: how long the process took.
    """

    report: dict[str, Any] | None
    error: str
    seconds: float

    @property
    def steps(self) -> list[int]:
        """Steady step times, ns."""
        return list(self.report["steps"]) if self.report else []


@dataclass
class Runner:
    """Starts the processes of one experiment.

    Attributes:
        program: the script and its arguments.
        budget_s: time that all runs together may take.
        steps: most steps of a run.
        seconds: time that a run measures, at least.
        processes: ranks, started by torchrun when more than one.
        mark: what counts as a step; found by the first run.
        seed: for the random numbers of every run.
    """

    program: Sequence[str]
    budget_s: float
    steps: int = 200
    seconds: float = 1.0
    processes: int = 1
    mark: str = ""
    seed: int = 0
    runs: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def spent_s(self) -> float:
        """Time since the start."""
        return time.monotonic() - self.started

    @property
    def left_s(self) -> float:
        """Time that is left."""
        return self.budget_s - self.spent_s

    def run(self, chosen: Chosen = (), *, trace: Path | None = None) -> Outcome:
        """Run the program once with these remedies."""
        self.runs += 1
        with tempfile.TemporaryDirectory(prefix="kinetoscope-") as folder:
            out, log = Path(folder) / "report.json", Path(folder) / "log.txt"
            start = time.monotonic()
            ended = self._start(self._command(chosen, out, trace), chosen, log)
            seconds = time.monotonic() - start
            report = json.loads(out.read_text("utf-8")) if out.exists() else None
            return Outcome(report, _problem(ended, report, log), seconds)

    def _start(self, command: list[str], chosen: Chosen, log: Path) -> int | None:
        """Run a command; returns its exit code, None when it took too long."""
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        for remedy, value in chosen:
            environment.update(remedy.environment(value))
        limit = max(self.left_s, 0.0) + 60.0
        with log.open("wb") as file:
            try:
                return subprocess.run(  # noqa: S603 - the user's own program
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    timeout=limit,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                return None

    def _command(self, chosen: Chosen, out: Path, trace: Path | None) -> list[str]:
        child = ["-m", "kinetoscope.experiments._child"]
        start = [sys.executable]
        if self.processes > 1:
            start += ["-m", "torch.distributed.run", "--standalone"]
            start += [f"--nproc-per-node={self.processes}"]
        options = ["--out", str(out), "--steps", str(self.steps), "--seconds", str(self.seconds)]
        options += ["--seed", str(self.seed), "--mark", self.mark]
        options += ["--remedies", ",".join(named(remedy, value) for remedy, value in chosen)]
        if trace is not None:
            options += ["--trace", str(trace)]
        return [*start, *child, *options, "--", *self.program]


def _problem(code: int | None, report: dict[str, Any] | None, log: Path) -> str:
    """Why a run says nothing; "" when it is fine."""
    if code is None:
        return "it did not end in time"
    if report is not None and report["error"]:
        return str(report["error"])
    if report is None or code != 0:
        lines = log.read_text("utf-8", "replace").strip().splitlines()[-LAST_LINES:]
        return " / ".join(line.strip() for line in lines) or f"it exited with {code}"
    if len(report["steps"]) < 3:
        return f"only {len(report['steps'])} steady steps were seen ({report['marks']})"
    return ""


def facts_of(report: dict[str, Any]) -> Facts:
    """Return the facts in the report of an unchanged run."""
    known = report["facts"]
    return Facts(
        training=bool(report["training"]),
        loaders=tuple(known["loaders"]),
        optimizers=tuple(known["optimizers"]),
        dtypes=tuple(known["dtypes"]),
        **{
            name: known[name]
            for name in (
                *("device", "convolutions", "dropout", "parameters", "ddp", "compiled"),
                *("grad_enabled", "batch", "settings", "cores", "autocast"),
            )
        },
    )
