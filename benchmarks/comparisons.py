"""Does `compare` say what unprofiled measurements say?

    python -m benchmarks.comparisons FOLDER... [--resnet FOLDER] [--verbose]

FOLDER holds recordings of planted mistakes as for `zoo.score`: `TRUTH.json` with step times without
a profiler, and a `slow` and a `fixed` recording of each case, one file each or one a rank. `slow`
is compared with `fixed`; the answer is

* right: faster, slower or no difference, as the true step times say, within noise,
* open: inconclusive, which is honest but no answer,
* refused: not comparable,
* WRONG: anything else.

`--resnet` names a folder with the two public recordings of ResNet-50 with 0 and 4 workers, which
are compared in both directions, each with itself, and with another model.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.score import files_of

from kinetoscope.compare import compare
from kinetoscope.engine import diagnose
from kinetoscope.result import Diagnosis
from kinetoscope.result.comparison import Comparison

SAME = 0.02
"""A true speed-up this close to 1 is none: calling it faster or slower is wrong."""
NOISE = 0.05
"""A recording and an unprofiled run of one program may differ by as much."""


@dataclass(frozen=True)
class Row:
    """One pair against the truth; `true`: unprofiled step time before / after."""

    case: str
    true: float
    found: Comparison

    @property
    def answer(self) -> str:
        """Whether the outcome agrees with the truth."""
        outcome = self.found.verdict.outcome
        if outcome == "not_comparable":
            return "refused"
        if outcome == "inconclusive":
            return "open"
        right = {
            "faster": self.true > 1 + SAME,
            "slower": self.true < 1 - SAME,
            "no_difference": abs(self.true - 1) <= NOISE,
        }
        return "right" if right[outcome] else "WRONG"

    @property
    def inside(self) -> bool | None:
        """Whether the true speed-up lies in the interval, with the noise of two runs."""
        speedup = self.found.verdict.speedup
        if speedup is None:
            return None
        return speedup.low / (1 + NOISE) <= self.true <= speedup.high * (1 + NOISE)

    def line(self) -> str:
        """A row of the table."""
        verdict = self.found.verdict
        span = "-"
        if verdict.speedup:
            span = (
                f"{verdict.speedup.low:.2f}..{verdict.speedup.mid:.2f}..{verdict.speedup.high:.2f}"
            )
        options = next((d for d in self.found.comparable.differences if d.what == "options"), None)
        told = f"{options.before} / {options.after}" if options else "equal"
        codes = ", ".join(f.code for f in self.found.findings.gone) or "-"
        inside = {True: "yes", False: "no", None: ""}[self.inside]
        return (
            f"| {self.case} | {self.true:.2f} | {verdict.outcome} | {span} | {inside} "
            f"| {self.answer} | {told} | {codes} |"
        )


HEAD = (
    "| case | true | outcome | speed-up | inside | answer | options | findings gone |\n"
    "|---|--:|---|---|---|---|---|---|"
)


def rows_of(folder: Path) -> list[Row]:
    """Compare every pair of a folder."""
    truths: dict[str, Any] = json.loads((folder / "TRUTH.json").read_text())
    found = []
    for case, truth in sorted(truths.items()):
        sides = [files_of(folder, case, variant) for variant in ("slow", "fixed")]
        times = [truth.get(v, {}).get("pipelined_ms") for v in ("slow", "fixed")]
        if not all(sides) or not all(times):
            continue
        results = [diagnose([str(f) for f in files]) for files in sides]
        found.append(Row(case, times[0] / times[1], compare(*results)))
    return found


def resnet(folder: Path) -> list[str]:
    """The public pair, and what must come out of it."""

    def one(part: str) -> Diagnosis:
        return diagnose(next(folder.glob(f"*{part}*")))

    slow, fast, other = one("resnet50_num_workers_0"), one("resnet50_num_workers_4"), one("alexnet")
    pairs = {
        "0 -> 4 workers": (slow, fast),
        "4 -> 0 workers": (fast, slow),
        "0 workers with itself": (slow, slow),
        "ResNet-50 -> AlexNet": (slow, other),
    }
    lines = []
    for name, sides in pairs.items():
        found = compare(*sides)
        gone = ", ".join(f.code for f in found.findings.gone)
        lines.append(f"* {name}: {found.verdict.sentence}{f' Gone: {gone}.' if gone else ''}")
    return lines


def main() -> None:
    """Print a table a folder, and the totals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--resnet", type=Path)
    parser.add_argument("--verbose", action="store_true", help="every row, not only those in doubt")
    args = parser.parse_args()
    if args.resnet:
        print("\n".join(resnet(args.resnet)))
    for folder in args.folders:
        rows = rows_of(folder)
        shown = rows if args.verbose else [r for r in rows if r.answer != "right" or not r.inside]
        print(f"\n{folder.name}\n\n{HEAD}", *(row.line() for row in shown), sep="\n")
        answers = Counter(row.answer for row in rows)
        known = [row.inside for row in rows if row.inside is not None]
        told = ", ".join(f"{n} {word}" for word, n in answers.most_common())
        print(f"\n{len(rows)} pairs: {told}; truth inside {sum(known)} of {len(known)}")


if __name__ == "__main__":
    main()
