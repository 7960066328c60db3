"""Run planted programs unmodified through `kinetoscope run` and compare with the truth.

python -m zoo.capture.score [--seconds 12] [--markdown FILE] [NAME ...]

For each program of `zoo/capture/programs`, in processes of their own, one after another: its true
step time without us, a captured run, and its true step time again. Compared are the class, the
exact line of the planted mistake, which mark was taken for the step, the step time, what the
program printed, and its exit code. A program that misses is run again, up to three times in all;
the median of its errors of the step time counts, and of everything else the last run.

The true step time is that of a long run less that of a short one, over the steps between them. If
it differs before and after a capture by more than what is allowed, the machine was too busy to
judge the stated step time; that is said and is not a failure.

The exit code is 1 when an output or an exit code changes, when fewer than four programs in five
have class, line and step mark right, or when the median error of the judged step times, with its
sign, is too large. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NoReturn

PROGRAMS = Path(__file__).resolve().parent / "programs"
FEW = 30
ALLOWED = 0.1
"""Largest difference of the stated step time from the true one."""


@dataclass(frozen=True)
class Truth:
    cls: str
    also: tuple[str, ...]
    codes: tuple[str, ...]
    steps: str
    line: int | None


@dataclass
class Score:
    """One captured run; `true_ms` was measured before and after it."""

    name: str
    truth: Truth
    true_ms: tuple[float, ...] = ()
    stated_ms: float = 0.0
    found: str = ""
    bottleneck: str = ""
    line: int | None = None
    exact: bool = False
    same_output: bool = False
    same_code: bool = False
    source: str = ""
    overhead: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    earlier: tuple[Score, ...] = ()

    @property
    def own_error(self) -> float:
        return self.stated_ms * len(self.true_ms) / sum(self.true_ms) - 1

    @property
    def own_judged(self) -> bool:
        """Did the true step time stay what it was from before this run to after it?"""
        return max(self.true_ms) / min(self.true_ms) - 1 <= ALLOWED

    @property
    def error(self) -> float:
        """Median over the runs that can be judged, or all if none can."""
        rows = (self, *self.earlier)
        return median([r.own_error for r in rows if r.own_judged] or [r.own_error for r in rows])

    @property
    def judged(self) -> bool:
        return any(row.own_judged for row in (self, *self.earlier))

    @property
    def step_right(self) -> bool:
        return abs(self.error) <= ALLOWED

    @property
    def class_right(self) -> bool:
        return self.bottleneck in (self.truth.cls, *self.truth.also)

    @property
    def line_right(self) -> bool:
        """Is the first place of the planted finding the planted line, and said to be exact?"""
        if self.truth.line is None:
            return True
        return self.exact and self.line == self.truth.line

    @property
    def same(self) -> bool:
        return self.same_output and self.same_code

    @property
    def source_right(self) -> bool:
        return self.truth.steps in ("", self.source)

    @property
    def found_right(self) -> bool:
        return self.class_right and self.line_right and self.source_right and self.same

    @property
    def wrong(self) -> bool:
        return not self.found_right or (self.judged and not self.step_right)


def truth_of(path: Path) -> Truth:
    text = path.read_text()
    words = {k: v.split() for k, v in re.findall(r"^(class|also|codes|steps): *(.*)$", text, re.M)}
    planted = [i for i, row in enumerate(text.splitlines(), 1) if row.rstrip().endswith("# PLANT")]
    return Truth(
        cls=words["class"][0],
        also=tuple(words.get("also", ())),
        codes=tuple(words.get("codes", ())),
        steps=(words.get("steps") or [""])[0],
        line=planted[0] if planted else None,
    )


@dataclass(frozen=True)
class Plain:
    """A run without Kinetoscope: seconds that its steps took, with all before and after them."""

    seconds: float
    code: int
    output: str


def plain(path: Path, steps: int) -> Plain:
    """Run a program as Python would, in a fork of this process, which has imported torch.

    What starting Python and importing torch take differs from run to run by more than hundreds of
    small steps take.
    """
    with tempfile.TemporaryDirectory() as folder:
        output, seconds = Path(folder) / "output", Path(folder) / "seconds"
        sys.stdout.flush()
        child = os.fork()
        if not child:
            _play(path, steps, output, seconds)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return Plain(float(seconds.read_text()), code, output.read_text())


def _play(path: Path, steps: int, output: Path, seconds: Path) -> NoReturn:
    os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), 1)
    sys.argv, sys.path[0] = [str(path), str(steps)], str(path.parent)
    code, start = 0, time.perf_counter()
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    seconds.write_text(repr(time.perf_counter() - start))
    sys.stdout.flush()
    os._exit(code)


def captured(path: Path, steps: int) -> tuple[subprocess.CompletedProcess[str], dict | None]:
    """Run a program through the command, in a process of its own, and read the result."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        words = ["run", "--quiet", "--budget", "30s", "-o", str(result), str(path), str(steps)]
        command = [sys.executable, "-m", "kinetoscope", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        return done, json.loads(result.read_text()) if result.exists() else None


def steps_of(path: Path, seconds: float) -> tuple[int, float]:
    """Number of steps that take about so many seconds, and the time of a run of `FEW` steps.

    Twice as many steps are run until they take long enough to tell; the first ones may start
    workers or compile.
    """
    short = plain(path, FEW).seconds
    steps = 4 * FEW
    while (took := plain(path, steps).seconds - short) < seconds / 8:
        steps *= 2
    return max(round(steps * seconds / took), 4 * FEW), short


def score(path: Path, steps: int, short: float) -> Score:
    """Measure, capture, and measure again; `short` is the time of a run of `FEW` steps."""
    row = Score(path.stem, truth_of(path))
    before = plain(path, steps)
    done, found = captured(path, steps)
    after = plain(path, steps)
    row.true_ms = tuple((r.seconds - short) / (steps - FEW) * 1e3 for r in (before, after))
    row.same_output = done.stdout == before.output == after.output
    row.same_code = done.returncode == before.code
    if found is None:
        row.problems = done.stderr.splitlines()[-3:]
        return row
    return fill(row, found)


def fill(row: Score, found: dict) -> Score:
    row.stated_ms = found["step"]["time_ns"]["mid"] / 1e6
    row.bottleneck = found["verdict"]["bottleneck"]
    capture = found["capture"]
    row.source = capture["step_source"]
    row.problems = capture["problems"]
    row.overhead = {w["name"]: w["overhead"] for w in capture["windows"]}
    planted = [f for f in found["findings"] if f["code"] in row.truth.codes]
    if planted:
        row.found = planted[0]["code"]
        for place in planted[0]["locations"][:1]:
            row.line, row.exact = place["line"], place["exact"]
    return row


def best(path: Path, seconds: float) -> Score:
    """One run, a second one when the first cannot be judged, and a third one after a miss."""
    rows: list[Score] = []
    steps, short = steps_of(path, seconds)
    while True:
        row = score(path, steps, short)
        row.earlier = tuple(rows)
        rows.append(row)
        enough = 3 if row.wrong else 1 if row.judged else 2
        if len(rows) >= enough:
            return row
        print(table_row(row), "<- again", flush=True)


HEAD = (
    "| program | class | finding | line | true ms, before and after | stated ms | error "
    "| light | full | output |\n|---|---|---|---|---|---|---|---|---|---|"
)


def table_row(row: Score) -> str:
    cls = row.bottleneck + ("" if row.class_right else f" (not {row.truth.cls})")
    line = "-" if row.truth.line is None else f"{row.line or '?'} exact"
    if not row.line_right:
        line = f"{row.line or '?'}{' exact' if row.exact else ''} (not {row.truth.line})"
    error = f"{row.error:+.1%}" + ("" if row.judged else " (too noisy)")
    same = "same" if row.same else "DIFFERENT"
    over = [f"{row.overhead.get(name, 0) or 0:+.0%}" for name in ("light", "full")]
    true = ", ".join(f"{ms:.3g}" for ms in row.true_ms)
    return (
        f"| {row.name} | {cls} | {row.found or '-'} | {line} | {true} "
        f"| {row.stated_ms:.3g} | {error} | {over[0]} | {over[1]} | {same} |"
    )


def closing(rows: list[Score]) -> str:
    judged = [r for r in rows if r.judged]
    text = (
        f"Of {len(rows)} programs: class right {sum(r.class_right for r in rows)}, planted line "
        f"exact and first {sum(r.line_right for r in rows)}, steps found as expected "
        f"{sum(r.source_right for r in rows)}, output and exit code unchanged "
        f"{sum(r.same for r in rows)}, stated step time within {ALLOWED:.0%} "
        f"{sum(r.step_right for r in judged)} of {len(judged)} judged."
    )
    again = [r.name for r in rows if r.earlier]
    noisy = [r.name for r in rows if not r.judged]
    if again:
        text += f" Run more than once: {', '.join(again)}."
    if noisy:
        text += f" Step time not judged, as the true one moved by itself: {', '.join(noisy)}."
    missed = [r.name for r in rows if r.wrong]
    return text + (f" MISSED: {', '.join(missed)}." if missed else "")


def failed(rows: list[Score]) -> bool:
    """A changed output or exit code, too few right findings, or step times that are off as a rule.

    The time of one program may be off, either way, where the machine's pace changes within seconds;
    the closing line names it. The median over the programs may not: profiling in a baseline would
    make all of them too long.
    """
    right = sum(row.found_right for row in rows)
    errors = [row.error for row in rows if row.judged]
    off = bool(errors) and abs(median(errors)) > ALLOWED
    return any(not row.same for row in rows) or 5 * right < 4 * len(rows) or off


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch
    import torch._dynamo  # optimizers import it; both are for the forks

    rows = []
    print(f"torch {torch.__version__}, {args.seconds:g} s of steps a run\n\n{HEAD}", flush=True)
    for path in sorted(PROGRAMS.glob("*.py")):
        if not args.names or path.stem in args.names:
            rows.append(best(path, args.seconds))
            print(table_row(rows[-1]), flush=True)
            for problem in rows[-1].problems:
                print(f"    {problem}", flush=True)
    print(f"\n{closing(rows)}")
    if args.markdown:
        args.markdown.write_text("\n".join([HEAD, *map(table_row, rows), "", closing(rows), ""]))
    sys.exit(failed(rows))


if __name__ == "__main__":
    main()
