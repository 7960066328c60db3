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
from pathlib import Path
from typing import Any

READY, GO = "ready", "go"
"""Files by which a child (with its rank) and the parent tell each other; the second one holds the
mark of a step."""
POLL_S = 0.02
TERMINATE_S = 5.0


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
    def trace(self) -> Path:
        """Where a recording lies, if one was asked for."""
        return self.folder / "trace.json.gz"

    def wait_until_ready(self, limit_s: float) -> None:
        """Wait until the imports are done, or the process has ended."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end and self._child.poll() is None:
            if len(list(self.folder.glob(f"{READY}*"))) >= self._ranks:
                return
            time.sleep(POLL_S)

    def finish(self, mark: str, limit_s: float) -> tuple[int | None, dict[str, Any] | None]:
        """Let it run; returns its exit code (None: it took too long) and its report."""
        go = self.folder / f"{GO}.part"
        go.write_text(mark, encoding="utf-8")
        go.rename(self.folder / GO)
        code: int | None
        try:
            code = self._child.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            self.kill()
        report = self.folder / "report.json"
        return code, json.loads(report.read_text("utf-8")) if report.exists() else None

    def last_lines(self, count: int) -> list[str]:
        """The end of what the program printed."""
        text = self._log.read_text("utf-8", "replace")
        return [line.strip() for line in text.strip().splitlines()[-count:]]

    def kill(self) -> None:
        """End it and what it has started (ranks, loader workers)."""
        if self._child.poll() is None:
            self._child.terminate()  # torchrun ends its ranks then
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(TERMINATE_S)
        if os.name == "posix":
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)
        elif self._child.poll() is None:
            self._child.kill()
        self._child.wait()

    def close(self) -> None:
        """End it and delete its folder."""
        self.kill()
        self._home.cleanup()
