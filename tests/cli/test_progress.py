"""What people see while an experiment runs."""

from __future__ import annotations

import io
import re
import sys

import pytest

from kinetoscope.cli import progress

LONG = "round 2, run 3 of 9: dataloader-workers=8 + compile=max-autotune-no-cudagraphs"


class Terminal(io.StringIO):
    """A stderr that is one."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("columns", "widest"), [(60, 60), (140, 100)])
def test_one_line_that_fits_the_terminal(
    columns: int, widest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    with progress.within(300.0) as tell:
        tell(LONG)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", screen.getvalue())
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", plain) if "round 2, run 3 of 9" in line]
    assert lines
    for line in lines:
        assert len(line) <= widest
        assert line.endswith("0:00 of 5:00")
        assert ("compile=max-autotune-no-cudagraphs" in line) == (widest == 100)


def test_a_log_gets_a_line_a_stage(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.within(75.0) as tell:
        tell("running the program as it is")
        now[0] = 165.0
        tell("round 1, run 1 of 2: unchanged")
        tell("round 1, run 2 of 2: zero-grad")
        now[0] = 176.0
        tell("round 2, run 1 of 2: zero-grad")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "measuring for 1:15 (--budget), or less",
        "[0:00 of 1:15] running the program as it is",
        "[1:05 of 1:15] round 1, 2 runs",
        "[1:16, ending] round 2, 2 runs",
    ]
