"""Scores the diagnosis against recordings whose truth is known.

    python -m zoo.score FOLDER [CASE ...] [--source-root DIR]

FOLDER holds `TRUTH.json` and `CASE.slow.json.gz`, `CASE.fixed.json.gz` (or one file a rank).
The truth is measured without a profiler, so it owes nothing to this program.

With `--source-root zoo/programs` it also counts how often an exact line of the finding is in the
planted statement (a loop counts with its body), among the programs whose recording shows the
function with that statement.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kinetoscope.engine import DiagnoseOptions, Examined, examine
from kinetoscope.result import Diagnosis, Finding
from kinetoscope.result.finding import SEVERITIES

ALIASES = {
    "IN612": ("DL104",),
    "DL104": ("IN612",),
    "FW501": ("FW502",),  # the more specific one replaces the other
    "FW511": ("FW512",),
    "FW512": ("FW511",),
    "CM406": ("DL117",),
    "MM316": ("IN605",),
    "MM307": ("FW509",),
    "MM308": ("MM305",),
    "IN602": ("FW501",),
    "IN622": ("IN623",),
    "MM311": ("CP212",),
}
"""Rules that name the same cause."""


@dataclass(frozen=True)
class Score:
    """What the diagnosis of one slow recording got right; None: does not apply."""

    case: str
    bottleneck: str
    class_right: bool | None
    cause_rank: int | None
    cause_right: bool | None
    function_right: bool | None
    line_right: bool | None
    gain: str
    gain_right: bool | None
    gain_error: float | None
    gain_width: float | None
    step_error: float | None
    step_inside: bool | None
    alarms: tuple[str, ...]
    top: tuple[str, ...]


def files_of(folder: Path, case: str, variant: str) -> list[Path]:
    """The recording of a case: one file, or one a rank."""
    return sorted(folder.glob(f"{case}.{variant}.json.gz")) or sorted(
        folder.glob(f"{case}.{variant}.rank*.json.gz")
    )


def score_case(
    folder: Path, case: str, truth: dict[str, Any], variant: str, source_root: Path | None = None
) -> Score | None:
    """Diagnose one recording and compare."""
    files = files_of(folder, case, variant)
    if not files:
        return None
    examined = examine([str(f) for f in files], options=DiagnoseOptions(source_root=source_root))
    result = examined.diagnosis
    planted = bool(truth.get("codes")) and variant != "fixed"
    program = [f for f in result.findings if f.class_ != "quality"]
    high = SEVERITIES.index("high")
    alarms = tuple(
        f"{f.code}:{f.severity}" for f in program if SEVERITIES.index(f.severity) <= high
    )
    top = tuple(f"{f.code} {f.gain.mid:.2f}x" for f in program[:3])
    real = truth.get("fixed" if variant == "fixed" else "slow", {}).get("pipelined_ms")
    mid = result.step.time_ns.mid / 1e6
    fields: dict[str, Any] = {
        "step_error": mid / real - 1 if real else None,
        "step_inside": _inside(result, real) if real else None,
    }
    if not planted:
        right = None
        if variant != "fixed":
            right = result.verdict.bottleneck in {truth["class"], *truth.get("also", ())}
        return Score(
            case,
            result.verdict.bottleneck,
            right,
            None,
            None,
            None,
            None,
            "",
            None,
            None,
            None,
            alarms=alarms,
            top=top,
            **fields,
        )
    hit, rank = _cause(program, truth["codes"])
    gain_right, error, width, text = _gain(hit, truth["speedup"])
    return Score(
        case,
        result.verdict.bottleneck,
        result.verdict.bottleneck in {truth["class"], *truth["also"]},
        rank,
        rank is not None and rank <= 3,
        _function(hit, truth),
        _line(hit, truth, examined, source_root),
        text,
        gain_right,
        error,
        width,
        alarms=alarms,
        top=top,
        **fields,
    )


def _inside(result: Diagnosis, real_ms: float) -> bool:
    """Truth within the bracket, with the 5 % that two runs of one program differ by."""
    step = result.step.time_ns
    return 0.95 * step.low <= real_ms * 1e6 <= 1.05 * step.high


def _cause(findings: list[Finding], codes: list[str]) -> tuple[Finding | None, int | None]:
    wanted = set(codes).union(*(ALIASES.get(code, ()) for code in codes))
    for rank, finding in enumerate(findings, 1):
        if finding.code in wanted:
            return finding, rank
    return None, None


def _function(hit: Finding | None, truth: dict[str, Any]) -> bool | None:
    wanted = set(truth.get("functions", ())) | {(truth.get("planted") or {}).get("function")}
    if not wanted - {None}:
        return None
    return hit is not None and any(place.function in wanted for place in hit.locations)


def _line(
    hit: Finding | None, truth: dict[str, Any], examined: Examined, root: Path | None
) -> bool | None:
    """Is an exact line in the planted statement? None where source or recording do not allow it."""
    planted = truth.get("planted") or {}
    if root is None or not (root / str(planted.get("file"))).is_file():
        return None
    frames = (f for f in examined.lead.trace.tree.frames.values() if f is not None)
    if (planted["file"], planted["function"]) not in {
        (Path(f.file).name, f.function) for f in frames
    }:
        return None
    low, high = _statement((root / planted["file"]).read_text(), planted["line"])
    return hit is not None and any(
        place.exact and Path(place.file or "").name == planted["file"] and low <= place.line <= high
        for place in hit.locations
        if place.line is not None
    )


def _statement(source: str, line: int) -> tuple[int, int]:
    """First and last line of the innermost statement around a line, functions left out."""
    nodes = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.stmt))
    around = [
        (n.lineno, n.end_lineno or n.lineno)
        for n in nodes
        if not isinstance(n, ast.FunctionDef | ast.ClassDef)
        and n.lineno <= line <= (n.end_lineno or n.lineno)
    ]
    return max(around, default=(line, line))


def _gain(
    hit: Finding | None, speedup: float
) -> tuple[bool | None, float | None, float | None, str]:
    if hit is None:
        return False, None, None, "-"
    gain = hit.gain
    text = f"{gain.low:.2f}..{gain.mid:.2f}..{gain.high:.2f}"
    if gain.basis == "none":
        return 0.9 <= speedup <= 1.1, abs(1 / speedup - 1), 1.0, "none"
    inside = 0.95 * gain.low <= speedup <= 1.05 * gain.high
    return inside, abs(math.log(gain.mid / speedup)), gain.high / gain.low, text


def _mark(value: bool | None) -> str:
    return {True: "[green]yes[/]", False: "[red]NO[/]", None: ""}[value]


def _row(score: Score, truth: dict[str, Any]) -> list[str]:
    return [
        score.case,
        f"{score.bottleneck} {'' if score.class_right in (True, None) else '≠ ' + truth['class']}",
        _mark(score.class_right),
        "" if score.cause_right is None else str(score.cause_rank or "-"),
        _mark(score.cause_right),
        _mark(score.function_right),
        _mark(score.line_right),
        score.gain,
        f"{truth.get('speedup', 0):.2f}" if score.cause_right is not None else "",
        _mark(score.gain_right),
        ""
        if score.step_error is None
        else f"{score.step_error:+.0%}{'' if score.step_inside else ' !'}",
        " ".join(score.alarms) if score.cause_right is None else "",
        ", ".join(score.top),
    ]


def _share(values: list[bool | None]) -> str:
    known = [v for v in values if v is not None]
    return f"{sum(known)}/{len(known)} = {sum(known) / len(known):.0%}" if known else "-"


def _median(values: list[float | None]) -> str:
    known = [v for v in values if v is not None]
    return f"{statistics.median(known):.2f}" if known else "-"


def main() -> None:
    """Print one line per recording and the totals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--variant", default="slow", choices=("slow", "fixed", "light"))
    parser.add_argument("--source-root", type=Path, help="folder of the recorded programs")
    args = parser.parse_args()
    truths = json.loads((args.folder / "TRUTH.json").read_text())
    table = Table(
        "case",
        "verdict",
        "class",
        "#",
        "cause",
        "function",
        "line",
        "gain",
        "true",
        "in range",
        "step",
        "alarms",
        "top three",
        pad_edge=False,
    )
    scores = []
    for case, truth in sorted(truths.items()):
        if args.cases and case not in args.cases:
            continue
        score = score_case(args.folder, case, truth, args.variant, args.source_root)
        if score is not None:
            scores.append((score, truth))
            table.add_row(*_row(score, truth))
    console = Console(width=230)
    console.print(table)
    _totals(console, [s for s, _ in scores], args.variant)


def _totals(console: Console, scores: list[Score], variant: str) -> None:
    healthy = [s for s in scores if s.cause_right is None]
    console.print(f"class right           {_share([s.class_right for s in scores])}")
    console.print(f"cause in first three  {_share([s.cause_right for s in scores])}")
    console.print(f"function named        {_share([s.function_right for s in scores])}")
    console.print(f"exact line            {_share([s.line_right for s in scores])}")
    console.print(f"true gain in range    {_share([s.gain_right for s in scores])}")
    console.print(f"median |log gain error| {_median([s.gain_error for s in scores])}")
    console.print(f"median range width    {_median([s.gain_width for s in scores])}")
    console.print(f"step in bracket       {_share([s.step_inside for s in scores])}")
    console.print(
        f"median |step error|   {_median([abs(s.step_error) if s.step_error is not None else None for s in scores])}"
    )
    alarms = sum(bool(s.alarms) for s in healthy)
    console.print(
        f"false alarms          {alarms} of {len(healthy)} {'fixed' if variant == 'fixed' else 'healthy'} recordings"
    )


if __name__ == "__main__":
    main()
