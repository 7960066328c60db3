"""Processes that wait for their turn; no torch needed: a small program plays the child."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kinetoscope.experiments._process import Process, Turn
from kinetoscope.experiments.runner import Chosen, Runner, _marks

CHILD = """
import json, os, sys, time
folder = sys.argv[sys.argv.index("--folder") + 1]
script = sys.argv[sys.argv.index("--") + 1]
open(os.path.join(folder, "ready0"), "w").close()
while not os.path.exists(os.path.join(folder, "go")):
    time.sleep(0.01)
mark = json.load(open(os.path.join(folder, "go")))["mark"]
exec(script)
report = {"mark": mark, "pid": os.getpid(), "error": None, "steps": [1] * 9, "marks": {}}
json.dump(report, open(os.path.join(folder, "report.json"), "w"))
"""
COMMAND = [sys.executable, "-c", CHILD]


@pytest.fixture
def start() -> Iterator[Callable[[str], Process]]:
    made: list[Process] = []

    class Started(Process):
        def __init__(self, script: str) -> None:
            super().__init__(COMMAND, [script], environment=dict(os.environ), ranks=1)
            made.append(self)

    yield Started
    for process in made:
        process.close()


def test_it_waits_until_it_is_let_go(start: Callable[[str], Process], tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    process = start(f"open({str(seen)!r}, 'w').close()")
    process.wait_until_ready(20)
    time.sleep(0.1)
    assert not seen.exists()
    code, report = process.finish(Turn("module"), 20)
    assert code == 0
    assert report is not None
    assert report["mark"] == "module"
    assert seen.exists()


def test_what_fails_says_its_last_lines(start: Callable[[str], Process]) -> None:
    process = start("raise ValueError('broken')")
    code, report = process.finish(Turn(), 20)
    assert code == 1
    assert report is None
    assert process.last_lines(1) == ["ValueError: broken"]


def test_what_takes_too_long_is_ended_with_what_it_started(
    start: Callable[[str], Process], tmp_path: Path
) -> None:
    late = tmp_path / "late"
    script = f"import subprocess; subprocess.Popen(['sh', '-c', 'sleep 1.5; touch {late}'])"
    process = start(f"{script}; time.sleep(60)")
    process.wait_until_ready(20)
    assert process.finish(Turn(), 0.5) == (None, None)
    time.sleep(1.5)
    assert not late.exists()


class Pretend(Runner):
    """Runs the small program above."""

    def _command(self, chosen: Chosen, *, trace: bool) -> list[str]:
        return COMMAND


def test_the_next_processes_start_together_and_nothing_starts_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kinetoscope.experiments.runner._most_ahead", lambda _: 3)
    started: list[float] = []
    popen = subprocess.Popen

    def counted(*args: object, **kwargs: object) -> object:
        started.append(time.monotonic())
        return popen(*args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr("kinetoscope.experiments._process.subprocess.Popen", counted)
    with Pretend(["pass"], 60.0) as runner:
        coming: list[Chosen] = [(), (), ()]
        for at in range(3):
            runner.prepare(coming[at:])
            assert len(started) == 3
            assert runner.run().error == ""
        runner.prepare([(), ()])
        assert len(started) == 5
    assert not runner._waiting


def test_each_variant_compiles_into_a_cache_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from kinetoscope.experiments.registry import remedies_for
    from kinetoscope.experiments.runner import CACHE

    monkeypatch.delenv(CACHE, raising=False)  # torch sets it in a process that has compiled
    chosen = tuple(remedies_for(["compile=default"]))
    with Pretend(["pass"], 60.0) as runner:
        plain, compiled = runner._environment(())[CACHE], runner._environment(chosen)[CACHE]
        assert plain != compiled
        assert runner._environment(chosen)[CACHE] == compiled


def test_the_users_own_cache_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from kinetoscope.experiments.runner import CACHE

    monkeypatch.setenv(CACHE, "/somewhere")
    with Pretend(["pass"], 60.0) as runner:
        assert runner._environment(())[CACHE] == "/somewhere"


def test_few_steps_are_counted_in_words() -> None:
    counts = {"optimizer": 4, "loader": 0, "module": 1}
    assert (
        _marks(counts) == "4 steps of an optimizer, 0 batches of a DataLoader, 1 call of a module"
    )
