"""A program runs as Python would run it. None of these programs imports torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SHOW = """
import sys
print(__name__, __file__, sys.argv[1:], sys.path[0], __spec__ is None, __package__)
class Here: pass
import pickle
print(pickle.loads(pickle.dumps(Here())).__class__ is Here)
"""


def _both(folder: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], ...]:
    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run(*words), run("-m", "kinetoscope", "run", *words)


def test_a_script_sees_what_it_would_see(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    plain, ours = _both(tmp_path, "show.py", "-o", "--budget", "x")
    assert ours.stdout == plain.stdout
    assert "True" in ours.stdout
    assert ours.returncode == plain.returncode == 0


def test_a_module_sees_what_it_would_see(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(
        "import sys\nfrom pack import tool\nprint(__name__, sys.argv, sys.path[0], __spec__.name)"
    )
    (package / "tool.py").write_text("print(__name__, __package__)")
    for target in ("pack", "pack.tool"):
        plain, ours = _both(tmp_path, "-m", target, "a", "--b")
        assert ours.stdout == plain.stdout
        assert ours.stdout


def test_a_folder_with_a_main_runs(tmp_path: Path) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "helper.py").write_text("word = 'helped'")
    (folder / "__main__.py").write_text("import helper\nprint(helper.word)")
    plain, ours = _both(tmp_path, "app")
    assert ours.stdout == plain.stdout == "helped\n"


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("import sys; sys.exit(5)", 5),
        ("import sys; sys.exit('bad news')", 1),
        ("raise SystemExit", 0),
        ("raise ValueError('broken')", 1),
        ("import os; os._exit(9)", 9),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15),
        ("import atexit; atexit.register(print, 'bye'); print('hi')", 0),
    ],
)
def test_every_ending_is_the_programs_own(tmp_path: Path, source: str, code: int) -> None:
    (tmp_path / "end.py").write_text(source + "\n")
    plain, ours = _both(tmp_path, "end.py")
    assert ours.returncode == plain.returncode == code
    assert ours.stdout == plain.stdout
    assert plain.stderr in ours.stderr or "Traceback" in plain.stderr


def test_a_traceback_begins_with_the_program(tmp_path: Path) -> None:
    (tmp_path / "end.py").write_text("def f():\n    raise ValueError('broken')\nf()\n")
    plain, ours = _both(tmp_path, "end.py")
    assert plain.stderr.replace(str(tmp_path) + "/", "") in ours.stderr.replace(
        str(tmp_path) + "/", ""
    )
    assert "kinetoscope/capture" not in ours.stderr


def test_frames_of_ours_inside_a_traceback_are_left_out(tmp_path: Path) -> None:
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("try:\n    1 / 0\nexcept Exception:\n    import no_such")
    (tmp_path / "end.py").write_text("import torch\n")
    plain, ours = _both(tmp_path, "end.py")
    assert ours.returncode == plain.returncode == 1
    assert "kinetoscope/capture" not in ours.stderr
    assert ours.stderr.startswith(plain.stderr.replace('"end.py"', f'"{tmp_path / "end.py"}"'))


def test_a_missing_program_is_wrong_usage(tmp_path: Path) -> None:
    for words in (["nowhere.py"], ["-m", "no_such_module"]):
        done = _both(tmp_path, *words)[1]
        assert done.returncode == 2
        assert "cannot run" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_program_without_torch_says_so(tmp_path: Path) -> None:
    (tmp_path / "end.py").write_text("print('no torch')")
    done = _both(tmp_path, "end.py")[1]
    assert done.returncode == 0
    assert "torch" in done.stderr
    assert "nothing was recorded" in done.stderr


def test_bad_options_are_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "end.py").write_text("print('ran')")
    for words in (["--budget", "soon"], ["--max-size", "big"], ["--ranks", "x"], ["-o", "a.xyz"]):
        done = _both(tmp_path, *words, "end.py")[1]
        assert done.returncode == 2, words
        assert done.stdout == ""


def test_a_program_that_ends_before_the_windows_is_told_what_a_step_takes() -> None:
    from types import SimpleNamespace

    from kinetoscope.cli.run_result import _nothing, _what_to_do

    timed = SimpleNamespace(facts={"baseline": {"steps": 1200, "step_ns": 1_500_000}})
    assert _nothing(timed).endswith("a step takes: 1.50 ms, without a profiler, over 1,200 steps")  # type: ignore[arg-type]
    assert _nothing(SimpleNamespace(facts={})) == "nothing was recorded"  # type: ignore[arg-type]
    problems = ["the program ended during the light phase"]
    assert "more steps" in _what_to_do(problems, SimpleNamespace(how="finished"))  # type: ignore[arg-type]
    assert "more steps" not in _what_to_do(problems, SimpleNamespace(how="raised"))  # type: ignore[arg-type]
