"""Run planted programs unmodified through `kinetoscope run` and compare with the truth.

python -m zoo.capture.score [--seconds 8] [--markdown FILE] [NAME ...]

For each program of `zoo/capture/programs`: its true step time (from two runs without us that
differ in their number of steps), then one captured run. Compared are the class, the exact line of
the planted mistake, the step time, what the program printed, and its exit code.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
FEW = 30


@dataclass(frozen=True)
class Truth:
    cls: str
    also: tuple[str, ...]
    codes: tuple[str, ...]
    steps: str
    line: int | None


@dataclass
class Score:
    name: str
    truth: Truth
    true_ms: float
    stated_ms: float = 0.0
    cpu_error: float = 0.0
    found: str = ""
    bottleneck: str = ""
    line: int | None = None
    exact: bool = False
    top: bool = False
    same_output: bool = False
    same_code: bool = False
    source: str = ""
    overhead: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def error(self) -> float:
        return self.stated_ms / self.true_ms - 1 if self.true_ms else 0.0

    @property
    def class_right(self) -> bool:
        return self.bottleneck in (self.truth.cls, *self.truth.also)

    @property
    def line_right(self) -> bool:
        if self.truth.line is None:
            return True
        return self.exact and self.line == self.truth.line


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
class Took:
    wall: float
    cpu: float
    """Processor time of the process and its children: the same on a busy machine."""


def run(command: list[str]) -> tuple[Took, subprocess.CompletedProcess[str]]:
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Took(time.perf_counter() - start, cpu), done


def steps_for(path: Path, seconds: float) -> tuple[int, Took]:
    """Steps that fill the time, and what the short run took."""
    short, _ = run([sys.executable, str(path), str(FEW)])
    more, _ = run([sys.executable, str(path), str(4 * FEW)])
    step = max((more.cpu - short.cpu), (more.wall - short.wall) / 4, 6e-3) / (3 * FEW)
    return max(int(seconds / step), 4 * FEW), short


def score(path: Path, seconds: float) -> Score:
    truth = truth_of(path)
    steps, short = steps_for(path, seconds)
    took, plain = run([sys.executable, str(path), str(steps)])
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "kinetoscope", "run", "--quiet", "--budget", "40s"]
        _, captured = run([*command, "-o", str(result), str(path), str(steps)])
        found = json.loads(result.read_text()) if result.exists() else None
    row = Score(path.stem, truth, (took.wall - short.wall) / (steps - FEW) * 1e3)
    row.same_output = captured.stdout == plain.stdout
    row.same_code = captured.returncode == plain.returncode
    if found is None:
        row.problems = captured.stderr.splitlines()[-3:]
        return row
    cpu_ns = found["capture"]["baseline_cpu_ns"]
    row.cpu_error = cpu_ns / ((took.cpu - short.cpu) / (steps - FEW) * 1e9) - 1
    return fill(row, found)


def fill(row: Score, found: dict) -> Score:
    row.stated_ms = found["step"]["time_ns"]["mid"] / 1e6
    row.bottleneck = found["verdict"]["bottleneck"]
    capture = found["capture"]
    row.source = capture["step_source"]
    row.problems = capture["problems"]
    row.overhead = {w["name"]: w["overhead"] for w in capture["windows"]}
    for finding in found["findings"]:
        if finding["code"] not in row.truth.codes or row.found:
            continue
        row.found = finding["code"]
        places = finding["locations"]
        hits = [p for p in places if p["line"] == row.truth.line and p["exact"]]
        place = (hits or places or [{"line": None, "exact": False}])[0]
        row.line, row.exact = place["line"], place["exact"]
        row.top = bool(hits) and places[0] == hits[0]
    return row


HEAD = (
    "| program | class | finding | line | true ms | stated ms | error | by CPU time | light | full | output |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


def table_row(row: Score) -> str:
    cls = row.bottleneck + ("" if row.class_right else f" (not {row.truth.cls})")
    line = "-" if row.truth.line is None else f"{row.line or '?'}"
    if row.truth.line is not None:
        line += " exact" if row.line_right else f" (not {row.truth.line})"
        line += ", second" if row.line_right and not row.top else ""
    same = "same" if row.same_output and row.same_code else "DIFFERENT"
    over = [f"{row.overhead.get(name, 0) or 0:+.0%}" for name in ("light", "full")]
    return (
        f"| {row.name} | {cls} | {row.found or '-'} | {line} | {row.true_ms:.3g} "
        f"| {row.stated_ms:.3g} | {row.error:+.0%} | {row.cpu_error:+.0%} | {over[0]} | {over[1]} | {same} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    paths = sorted(PROGRAMS.glob("*.py"))
    rows = []
    print(HEAD, flush=True)
    for path in paths:
        if not args.names or path.stem in args.names:
            rows.append(score(path, args.seconds))
            print(table_row(rows[-1]), flush=True)
            for problem in rows[-1].problems:
                print(f"    {problem}", flush=True)
    right = sum(r.class_right for r in rows), sum(r.line_right for r in rows)
    near = sum(min(abs(r.error), abs(r.cpu_error)) <= 0.1 for r in rows)
    print(f"class {right[0]}, line {right[1]}, step within 10 % {near}, of {len(rows)}")
    if args.markdown:
        args.markdown.write_text("\n".join([HEAD, *map(table_row, rows), ""]))


if __name__ == "__main__":
    main()
