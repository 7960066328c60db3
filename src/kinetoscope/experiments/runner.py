"""Runs the program in fresh processes, one after the other, and keeps count of the time."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetoscope import units
from kinetoscope.errors import KinetoscopeError
from kinetoscope.experiments._process import EXITED, Process, Turn
from kinetoscope.experiments.remedy import Facts, Remedy, named

if TYPE_CHECKING:
    from typing_extensions import Self

Chosen = tuple[tuple[Remedy, str], ...]
"""Remedies with their parameters, installed together; () is the unchanged program."""

LAST_LINES = 5
GRACE_S = 60.0
"""Time beyond the budget that a run may take which was begun in time."""
COMPILING = 1 / 3
"""Part of that time that the first steps may compile in."""
MOST_AHEAD = 4
CACHE = "TORCHINDUCTOR_CACHE_DIR"


class ProgramError(KinetoscopeError):
    """The program itself, unchanged, cannot be measured."""


@dataclass(frozen=True)
class Outcome:
    """What one process reported.

    Attributes:
        report: the child's report; None when it wrote none.
        error: why the run says nothing; "" when it is fine.
        seconds: how long the process took.
        late: it was ended before it said anything, as it took too much of the time that was left.
    """

    report: dict[str, Any] | None
    error: str
    seconds: float
    late: bool = False

    @property
    def ended_early(self) -> bool:
        """Whether it ended after a few settled steps, each of them hopelessly slow."""
        return self.report is not None and bool(self.report.get("ended_early"))

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
    _waiting: list[tuple[Chosen, Process]] = field(default_factory=list)
    _caches: str = ""

    @property
    def ahead(self) -> int:
        """How many processes are started together."""
        return _most_ahead(self.processes)

    @property
    def spent_s(self) -> float:
        """Time since the start."""
        return time.monotonic() - self.started

    @property
    def left_s(self) -> float:
        """Time that is left."""
        return self.budget_s - self.spent_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for _chosen, process in self._waiting:
            process.close()
        self._waiting.clear()
        if self._caches:
            shutil.rmtree(self._caches, ignore_errors=True)

    def prepare(self, upcoming: Sequence[Chosen]) -> None:
        """Start the next processes together, and wait until all of them wait for their turn.

        Nothing is started while another process measures: the next batch begins when the last one
        is used up.
        """
        if not upcoming or self._take(upcoming[0], keep=True) is not None:
            return
        first = len(self._waiting)
        self._waiting += [(chosen, self._start(chosen)) for chosen in upcoming[: self.ahead]]
        for _, process in self._waiting[first:]:
            process.wait_until_ready(max(self.left_s, 0.0) + GRACE_S)

    def run(
        self, chosen: Chosen = (), *, usual_ns: int = 0, save_traces: Path | None = None
    ) -> Outcome:
        """Run the program once with these remedies.

        Args:
            chosen: the remedies.
            usual_ns: mean step of the unchanged program, for the work of a step of this one: where
                a few steps show that it is much slower, the run ends. 0: it does not.
            save_traces: a folder: record the program, a trace a rank.
        """
        self.runs += 1
        start = time.monotonic()
        process = self._take(chosen) if save_traces is None else None
        process = process or self._start(chosen, trace=save_traces is not None)
        try:
            limit_s = self._limit_s(chosen)
            turn = Turn(self.mark, usual_ns, limit_s * COMPILING)
            code, report = process.finish(turn, limit_s)
            if save_traces is not None:
                for trace in process.traces:
                    shutil.copy(trace, save_traces)
            problem = _problem(code, report, process, limit_s) or _unsettled(report, start)
        finally:
            process.close()
        late = code is None or bool(report and report.get("compiling"))
        return Outcome(report, problem, time.monotonic() - start, late=late)

    def _limit_s(self, chosen: Chosen) -> float:
        """How long a run may take: one remedy must not use up the time of all others."""
        left = max(self.left_s, 0.0)
        return max(left / 2, GRACE_S) if chosen else left + GRACE_S

    def _take(self, chosen: Chosen, *, keep: bool = False) -> Process | None:
        """The first process that waits with these remedies."""
        for at, (mine, process) in enumerate(self._waiting):
            if mine == chosen:
                if not keep:
                    del self._waiting[at]
                return process
        return None

    def _start(self, chosen: Chosen, *, trace: bool = False) -> Process:
        return Process(
            self._command(chosen, trace=trace),
            self.program,
            environment=self._environment(chosen),
            ranks=self.processes,
        )

    def _environment(self, chosen: Chosen) -> dict[str, str]:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if CACHE not in environment:
            # Of each variant its own: its first run shows what compiling costs, the others need not
            # wait for it, and neither finds what the user has compiled before.
            names = [c for c in _label(chosen) if c.isalnum() or c in "-_"]
            self._caches = self._caches or tempfile.mkdtemp(prefix="kinetoscope-cache-")
            environment[CACHE] = str(Path(self._caches) / "".join(names))
        for remedy, value in chosen:
            environment.update(remedy.environment(value))
        return environment

    def _command(self, chosen: Chosen, *, trace: bool) -> list[str]:
        child = ["-m", "kinetoscope.experiments._child"]
        start = [sys.executable]
        if self.processes > 1:
            start += ["-m", "torch.distributed.run", "--standalone"]
            start += [f"--nproc-per-node={self.processes}"]
        options = ["--steps", str(self.steps), "--seconds", str(self.seconds)]
        options += ["--seed", str(self.seed), "--remedies", _label(chosen)]
        return [*start, *child, *options, *["--trace"] * trace]


def _label(chosen: Chosen) -> str:
    return ",".join(named(remedy, value) for remedy, value in chosen)


def _most_ahead(processes: int) -> int:
    """How many may start together: one a core, and few, as each holds torch in memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return max(min(cores // processes, MOST_AHEAD), 1)


def _problem(
    code: int | None, report: dict[str, Any] | None, process: Process, limit_s: float
) -> str:
    """Why a run says nothing; "" when it is fine."""
    if code is None:
        return f"a run did not end within {limit_s:.0f} s; --budget gives it more"
    if report is not None and report["error"]:
        # Where a rank fails, the others fail as they miss it: the first one says why.
        return _with_last_line(process.first_failure() or str(report["error"]), process)
    if report is None or code != 0:
        last = " / ".join(process.last_lines(LAST_LINES))
        return process.first_failure() or last or f"it exited with {code}"
    if not report.get("compiling") and len(report["steps"]) < 3:
        steady = units.plural(len(report["steps"]), "steady step")
        return f"only {steady} seen ({_marks(report['marks'])})"
    return ""


def _with_last_line(error: str, process: Process) -> str:
    """An exit code says less than what the program said last; a traceback ends with the error."""
    last = "".join(process.last_lines(1))
    return f"{error}: {last}" if error.startswith(EXITED) and last else error


def _marks(counts: dict[str, int]) -> str:
    words = {
        "optimizer": ("step of an optimizer", "steps of an optimizer"),
        "loader": ("batch of a DataLoader", "batches of a DataLoader"),
        "module": ("call of a module", "calls of a module"),
    }
    return ", ".join(units.plural(counts[kind], *word) for kind, word in words.items())


def _unsettled(report: dict[str, Any] | None, start: float) -> str:
    if report is None or not report.get("compiling"):
        return ""
    steps, spent = report["marks"][report["mark"]], time.monotonic() - start
    return f"it still compiled in step {steps}, after {spent:.0f} s; --budget gives it more"


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
