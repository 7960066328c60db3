"""Cut recordings down to a few steps, small enough to be kept with the tests.

    python -m zoo.trim FOLDER OUT --steps 3 CASE [CASE ...]

Kept are the first marked steps with whatever they launched; a recording without marks is only
packed again. The truth of the cases is added to OUT/TRUTH.json.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

from zoo.score import files_of

Event = dict[str, Any]
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")


def trimmed(trace: dict[str, Any], steps: int) -> dict[str, Any]:
    """The trace with its first steps; flow arrows, which nothing reads, are left out."""
    events = [e for e in trace["traceEvents"] if e.get("ph") not in ("s", "f", "t")]
    marks = [e for e in events if _is_step(e)]
    if len(marks) > steps:
        marks.sort(key=lambda e: float(e["ts"]))
        events = _between(events, float(marks[0]["ts"]), _end(marks[steps - 1]))
    return {**trace, "traceEvents": events}


def _is_step(event: Event) -> bool:
    name = str(event.get("name", ""))
    return event.get("cat") == "user_annotation" and name.startswith("ProfilerStep#")


def _end(event: Event) -> float:
    return float(event["ts"]) + float(event.get("dur", 0))


def _between(events: list[Event], low: float, high: float) -> list[Event]:
    launched = {
        _correlation(e)
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and low <= float(e["ts"]) < high
    }
    kept = []
    for event in events:
        if event.get("ph") == "M" or "ts" not in event:
            kept.append(event)
        elif event.get("cat") in DEVICE:
            if _correlation(event) in launched:
                kept.append(event)
        elif float(event["ts"]) < high and _end(event) > low:
            kept.append(event)
    return kept


def _correlation(event: Event) -> Any:
    return event.get("args", {}).get("correlation")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("cases", nargs="+")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    known = args.out / "TRUTH.json"
    truths = json.loads(known.read_text()) if known.exists() else {}
    source = json.loads((args.folder / "TRUTH.json").read_text())
    for case in args.cases:
        for path in files_of(args.folder, case, "slow"):
            with gzip.open(path) as file:
                trace = trimmed(json.load(file), args.steps)
            text = json.dumps(trace, separators=(",", ":")).encode()
            target = args.out / path.name
            target.write_bytes(gzip.compress(text, 9, mtime=0))
            print(f"{target} {target.stat().st_size / 1000:.0f} kB")
        truths[case] = source[case]
    known.write_text(json.dumps(dict(sorted(truths.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
