"""Whole captures on the CPU. Skipped without torch, which CI installs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.capture.support import (
    TRAIN,
    capture,
    draws_the_recording,
    environment,
    own_problems,
)

pytest.importorskip(
    "torch",
    reason="captures need torch: pip install torch --index-url "
    "https://download.pytorch.org/whl/cpu",
)


def test_a_training_loop_is_recorded_and_measured(tmp_path: Path) -> None:
    ran = capture(
        tmp_path, TRAIN, "60000", options=("--stop-after", "-o", "t.json.gz", "-o", "page.html")
    )
    assert ran.code == 0
    assert ran.out == ""  # ended before it printed
    assert ran.result is not None
    found = ran.result["capture"]
    assert found["step_source"] == "optimizer"
    assert found["step_label"] == "SGD.step"
    assert own_problems(found["problems"]) == []
    assert [w["name"] for w in found["windows"]] == ["light", "full"]
    assert ran.result["step"]["time_ns"] == found["baseline_ns"]
    assert ran.result["inputs"][0]["path"] == "t.json.gz"
    assert draws_the_recording(tmp_path / "page.html")
    assert {"machine", "settings", "environment", "models", "optimizers"} <= set(found["facts"])
    assert found["facts"]["models"][0]["class"] == "Sequential"
    assert found["facts"]["optimizers"][0]["class"] == "SGD"
    again = subprocess.run(
        [sys.executable, "-m", "kinetoscope", "analyze", "t.json.gz", "--format", "json"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert '"baseline_ns"' in again.stdout


def test_the_programs_output_and_exit_code_are_its_own(tmp_path: Path) -> None:
    ran = capture(tmp_path, TRAIN + "\nsys.exit(4)", "30")
    assert ran.code == 4
    assert ran.out == "trained 29\n"


def test_a_program_that_is_too_short_says_so(tmp_path: Path) -> None:
    ran = capture(tmp_path, TRAIN, "2")
    assert ran.code == 0
    assert ran.result is None
    assert "ended after 2 steps" in ran.err


def test_a_crash_in_the_middle_still_gives_a_result(tmp_path: Path) -> None:
    source = TRAIN.replace(
        "        optimizer.zero_grad()\n",
        "        import kinetoscope.capture.sharing as s\n"
        "        session = s.current()\n"
        "        if session.phase == 'full' and session.index > session.plan.start + "
        "session.plan.baseline + session.plan.light + 8:\n"
        "            raise ValueError('crashed')\n"
        "        optimizer.zero_grad()\n",
    )
    ran = capture(tmp_path, source, "100000")
    assert ran.code == 1
    assert "ValueError: crashed" in ran.err
    assert "ended during the full phase" in ran.err
    assert ran.result is not None
    assert ran.result["capture"]["baseline_steps"] > 0


@pytest.mark.parametrize("how", ["os._exit(6)", "sys.exit(6)"])
def test_leaving_early_keeps_what_was_recorded(tmp_path: Path, how: str) -> None:
    source = TRAIN.replace(
        "        optimizer.zero_grad()\n",
        "        import os, kinetoscope.capture.sharing as s\n"
        f"        if s.current().phase == 'samples': {how}\n"
        "        optimizer.zero_grad()\n",
    )
    ran = capture(tmp_path, source, "100000")
    assert ran.code == 6
    assert ran.result is not None
    assert "ended during the samples phase" in ran.err


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, -2), (signal.SIGTERM, -15), (signal.SIGHUP, -1)]
)
def test_signals_end_the_program_and_keep_the_recording(
    tmp_path: Path, number: int, code: int
) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("ignored here, as under nohup, and so by the program as well")
    told = (
        "        import kinetoscope.capture.sharing as s\n"
        "        if s.current().phase == 'samples' and not told:\n"
        "            print('warm', flush=True)\n"
        "            told = True\n"
    )
    loop = "        optimizer.zero_grad()\n"
    source = TRAIN.replace("def main(steps):\n", "def main(steps):\n    told = False\n")
    (tmp_path / "program.py").write_text(source.replace(loop, told + loop))
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "kinetoscope",
            "run",
            "-o",
            "r.json",
            "--budget",
            "6s",
            "program.py",
            "10000000",
        ],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "warm\n"
    os.kill(process.pid, number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == code
    assert (tmp_path / "r.json").exists(), errors


def _profiled(begin: str) -> str:
    """A training loop that starts torch's profiler itself when `begin` holds."""
    return TRAIN.replace(
        "    for step in range(steps):\n",
        "    import kinetoscope.capture.sharing as s\n"
        "    from torch.profiler import profile, schedule\n"
        "    prof, phase = None, s.current().phase\n"
        "    for step in range(steps):\n"
        "        phase = s.current().phase if s.current() else 'done'\n"
        f"        if prof is None and {begin}:\n"
        "            prof = profile(schedule=schedule(wait=0, warmup=1, active=3, repeat=1))\n"
        "            prof.start()\n"
        "        if prof is not None: prof.step()\n",
    ).replace("    return step\n", "    return len(prof.events()), phase\n")


def test_a_program_that_profiles_itself_first_is_told(tmp_path: Path) -> None:
    source = _profiled("step == 0").replace("active=3", "active=10**9")
    source = source.replace("    return len(prof.events())", "    prof.stop()\n    return step")
    ran = capture(tmp_path, source, "1000", options=("--budget", "2s"))
    assert ran.code == 0, ran.err
    assert ran.out.startswith("trained (999, ")
    assert "no window is recorded: the program uses torch.profiler" in ran.err
    assert "Traceback" not in ran.err


def test_a_program_that_profiles_itself_later_gets_its_profile(tmp_path: Path) -> None:
    """Torch refuses a second profile: ours ends, and the program does not fail."""
    ran = capture(tmp_path, _profiled("phase == 'full'"), "6000", options=("--budget", "3s"))
    assert ran.code == 0, ran.err
    assert "trained (0," not in ran.out
    assert "the full window ends early: the program uses torch.profiler" in ran.err
    assert ran.result is not None
    assert ran.result["capture"]["windows"][0]["name"] == "light"


def test_an_evaluation_between_epochs_ends_a_window(tmp_path: Path) -> None:
    source = TRAIN.replace(
        "        optimizer.zero_grad()\n",
        "        import time, kinetoscope.capture.sharing as s\n"
        "        if s.current() and s.current().phase == 'full' and not done:\n"
        "            done, until = True, time.monotonic() + 12\n"
        "            while time.monotonic() < until: sum(range(1000))\n"
        "        optimizer.zero_grad()\n",
    ).replace("def main(steps):\n", "def main(steps):\n    done = False\n")
    ran = capture(tmp_path, source, "1000000", options=("--stop-after",))
    assert ran.code == 0, ran.err
    assert "the full window ends early: no step for" in ran.err
    assert ran.result is not None


def test_a_program_whose_steps_another_thread_makes_runs_on_to_its_end(tmp_path: Path) -> None:
    """Its exception would end that thread alone, and the program might wait for it for ever."""
    source = TRAIN.replace(
        'print("trained", main(int(sys.argv[1])))',
        "import threading\nt = threading.Thread(target=main, args=[10**9])\nt.start()\nt.join()",
    ).replace(
        "        optimizer.zero_grad()\n",
        "        import time; begun = begun or time.monotonic()\n"
        "        if time.monotonic() > begun + 8: break\n"
        "        optimizer.zero_grad()\n",
    )
    source = source.replace("def main(steps):\n", "def main(steps):\n    begun = 0\n")
    ran = capture(tmp_path, source, options=("--stop-after", "--budget", "3s"))
    assert ran.code == 0, ran.err
    assert "another thread makes the steps, so the program runs on to its end" in ran.err
    assert "Traceback" not in ran.err


def test_steps_that_become_slow_end_the_windows_in_time(tmp_path: Path) -> None:
    source = TRAIN.replace(
        "        optimizer.zero_grad()\n",
        "        import time, kinetoscope.capture.sharing as s\n"
        "        slow = slow or (s.current() is not None and s.current().phase == 'light')\n"
        "        time.sleep(0.6 if slow else 0.005)\n"
        "        optimizer.zero_grad()\n",
    ).replace("def main(steps):\n", "def main(steps):\n    slow = False\n")
    source += "\nprint(time.monotonic() - start)"
    ran = capture(
        tmp_path,
        "import time\nstart = time.monotonic()\n" + source.replace("main(int", "main(20000 or int"),
        "1",
        options=("--stop-after", "--budget", "5s"),
    )
    assert ran.code == 0, ran.err
    assert ran.result is not None
    windows = {row["name"]: row["steps"] for row in ran.result["capture"]["windows"]}
    assert 1 <= windows["light"] < 20  # 100 were planned, which would take a minute
    assert 1 <= windows["full"] < 20
    assert "they take longer than before" in ran.err
    assert "the program's pace changed" in ran.err


def test_a_process_forked_in_a_window_is_left_alone(tmp_path: Path) -> None:
    """The profiler's hooks would record all that a loader's worker does."""
    source = TRAIN.replace(
        "        optimizer.zero_grad()\n",
        "        import os, kinetoscope.capture.sharing as s\n"
        "        if s.current() and s.current().phase == 'full' and not done:\n"
        "            if sys.getprofile() is not None and not os.fork():\n"
        "                print('hooks', sys.getprofile(), flush=True)\n"
        "                os._exit(0)\n"
        "            done = sys.getprofile() is not None\n"
        "        optimizer.zero_grad()\n",
    ).replace("def main(steps):\n", "def main(steps):\n    done = False\n")
    ran = capture(tmp_path, source, "1000000", options=("--stop-after",))
    assert ran.code == 0, ran.err
    assert ran.out == "hooks None\n"
    assert ran.result is not None


def test_a_full_disk_is_said_and_the_program_goes_on(tmp_path: Path) -> None:
    """A limit on the size of files stands for it: torch notices neither by itself."""
    source = TRAIN.replace(
        "def main(steps):\n",
        "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "def main(steps):\n",
    )
    ran = capture(tmp_path, source, "3000", options=("--budget", "4s"))
    assert ran.code == 0
    assert ran.out == "trained 2999\n"
    assert "the light window could not be written" in ran.err
    assert "ulimit -f" in ran.err
    assert "Traceback" not in ran.err


def test_a_folder_that_is_gone_is_said(tmp_path: Path) -> None:
    source = TRAIN.replace(
        "        optimizer.zero_grad()\n",
        "        import shutil, kinetoscope.capture.sharing as s\n"
        "        if s.current() and s.current().phase == 'light':\n"
        "            shutil.rmtree(s.current().folder, ignore_errors=True)\n"
        "        optimizer.zero_grad()\n",
    )
    ran = capture(tmp_path, source, "3000", options=("--budget", "4s"))
    assert ran.code == 0
    assert ran.out == "trained 2999\n"
    assert "is gone; keep it until the program ends" in ran.err
    assert "Traceback" not in ran.err


def test_steps_that_never_come_are_asked_for(tmp_path: Path) -> None:
    source = (
        "import time, torch\n"
        "until = time.monotonic() + 26\n"
        "while time.monotonic() < until: torch.ones(10).add(1); time.sleep(0.01)\n"
        "print('over')\n"
    )
    ran = capture(tmp_path, source)
    assert ran.code == 0
    assert ran.out == "over\n"
    said = [line for line in ran.err.splitlines() if "kinetoscope.step()" in line]
    assert "no step seen in 2" in said[0]


def test_spawned_and_forked_workers_are_sampled(tmp_path: Path) -> None:
    source = """
import sys, torch, numpy as np
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self): return 10**6
    def __getitem__(self, i):
        x = np.arange(20000.0)
        for _ in range(30):
            x = np.sqrt(x + 1)
        return torch.from_numpy(x[:8].astype("float32"))
def main():
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Data(), 4, num_workers=1, multiprocessing_context=sys.argv[1])
    for k, x in enumerate(loader):
        optimizer.zero_grad(); model(x).mean().backward(); optimizer.step()
if __name__ == "__main__":
    main()
"""
    for context in ("fork", "spawn"):
        ran = capture(tmp_path, source, context, options=("--stop-after",))
        assert ran.code == 0, ran.err
        assert ran.result is not None, ran.err
        found = next(f for f in ran.result["findings"] if f["code"] == "DL102")
        place = found["locations"][0]
        assert (place["function"], place["line"], place["exact"]) == ("__getitem__", 9, True)


SLOW_AT_FIRST = """
import time, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100_000):
    time.sleep(0.5 + 0.4 * (step % 2) if step < 4 else 0.005)  # as a program that compiles again
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""


def test_a_program_that_was_slow_at_first_is_recorded_as_it_is_later(tmp_path: Path) -> None:
    ran = capture(tmp_path, SLOW_AT_FIRST, options=("--stop-after",))
    assert ran.result is not None, ran.err
    found = ran.result["capture"]
    assert found["baseline_steps"] > 20
    assert {w["name"]: w["steps"] >= 4 for w in found["windows"]} == {"light": True, "full": True}


CHILD = """
import multiprocessing, torch, kinetoscope

def work():
    model = torch.nn.Linear(32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with kinetoscope.profile(budget_s=5, output="child.json") as p:
        while not p.done:
            model(torch.ones(4, 32)).sum().backward()
            optimizer.step()

child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join(100)
print("code", child.exitcode)
"""


def test_a_child_may_capture_itself(tmp_path: Path) -> None:
    ran = capture(tmp_path, CHILD)
    assert ran.out == "code 0\n"
    child = json.loads((tmp_path / "child.json").read_text())
    assert child["capture"]["step_label"] == "SGD.step"
    assert "processes that the program starts itself" in ran.err
