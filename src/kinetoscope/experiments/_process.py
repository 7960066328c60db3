"""One process of an experiment: started ahead, waiting behind its imports, then let go.

Importing torch takes seconds and says nothing about the program. A process that waits has done it
already and uses no processor; it is let go when nothing else runs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

READY, GO, REPORT, FAILED = "ready", "go", "report.json", "failed"
"""Files by which a child and the parent tell each other. A rank that is ready leaves its process
number, one that failed leaves its error, each in a file with its rank; `go` holds a `Turn`; the
report is there when the run was measured."""
EXITED = "the program exited with"
TRACE = "trace.rank{}.json.gz"
POLL_S = 0.02
TERMINATE_S = 5.0
LEAVE_S = 10.0
"""How long what has reported may take to end."""


@dataclass(frozen=True)
class Turn:
    """What a process is told when it is let go.

    Attributes:
        mark: what counts as a step; "": to be found out.
        usual_ns: mean step of the unchanged program, for the work of a step of this one: one that
            is much slower ends early. 0: none does.
        patience_s: how long the first steps may compile.
    """

    mark: str = ""
    usual_ns: int = 0
    patience_s: float = 0.0


def alive(process: int) -> bool:
    """Whether a process runs, as far as can be told."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class Process:
    """A child with a folder of its own.

    Args:
        command: everything but the options that name files.
        program: the script and its arguments.
        environment: variables of the process.
        ranks: how many processes the command starts.
    """

    def __init__(
        self,
        command: Sequence[str],
        program: Sequence[str],
        *,
        environment: Mapping[str, str],
        ranks: int,
    ) -> None:
        self._ranks = ranks
        self._home = tempfile.TemporaryDirectory(prefix="kinetoscope-", ignore_cleanup_errors=True)
        self.folder = Path(self._home.name)
        own = ["--folder", str(self.folder), "--parent", str(os.getpid())]
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(  # noqa: S603 - the user's own program
                [*command, *own, "--", *program],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=os.name == "posix",
            )

    @property
    def _log(self) -> Path:
        return self.folder / "log.txt"

    @property
    def traces(self) -> list[Path]:
        """The recordings of the ranks, if they were asked for and came to their end."""
        return [t for t in map(self._trace_of, range(self._ranks)) if t.exists()]

    def _trace_of(self, rank: int) -> Path:
        return self.folder / TRACE.format(rank)

    def wait_until_ready(self, limit_s: float) -> None:
        """Wait until the imports are done, or the process has ended."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end and self._child.poll() is None:
            if len(list(self.folder.glob(f"{READY}*"))) >= self._ranks:
                return
            time.sleep(POLL_S)

    def finish(self, turn: Turn, limit_s: float) -> tuple[int | None, dict[str, Any] | None]:
        """Let it run; returns its exit code (None: it took too long) and its report."""
        go = self.folder / f"{GO}.part"
        go.write_text(json.dumps(asdict(turn)), encoding="utf-8")
        go.rename(self.folder / GO)
        report = self.folder / REPORT
        try:
            code = self._ended(time.monotonic() + limit_s, report)
        finally:
            self.kill()
        return code, json.loads(report.read_text("utf-8")) if report.exists() else None

    def _ended(self, end: float, report: Path) -> int | None:
        """The exit code; None: it took too long. What has reported has no say in how it ends."""
        while True:
            try:
                return self._child.wait(min(max(end - time.monotonic(), 0.0), LEAVE_S))
            except subprocess.TimeoutExpired:
                if report.exists() and time.time() - report.stat().st_mtime >= LEAVE_S:
                    return 0
                if time.monotonic() >= end:
                    return None

    def first_failure(self) -> str:
        """What the first rank that failed says; "" when none left a note."""
        notes = sorted(self.folder.glob(f"{FAILED}*"), key=lambda note: note.stat().st_mtime_ns)
        return notes[0].read_text("utf-8") if notes else ""

    def last_lines(self, count: int) -> list[str]:
        """The end of what the program printed."""
        text = self._log.read_text("utf-8", "replace")
        return [line.strip() for line in text.strip().splitlines()[-count:]]

    def kill(self) -> None:
        """End it and what it has started (ranks, loader workers)."""
        if self._child.poll() is None:
            self._child.terminate()  # torchrun ends its ranks then
            try:
                self._child.wait(TERMINATE_S)
            except subprocess.TimeoutExpired:
                self._kill_ranks()
        if os.name == "posix":
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)
        elif self._child.poll() is None:
            self._child.kill()
        self._child.wait()

    def _kill_ranks(self) -> None:
        """End ranks that torchrun does not end: each leads a process group of its own."""
        for file in self.folder.glob(f"{READY}*"):
            number = file.read_text("utf-8")
            if os.name == "posix" and number.isdigit():
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(int(number), signal.SIGKILL)

    def close(self) -> None:
        """End it and delete its folder."""
        self.kill()
        self._home.cleanup()
