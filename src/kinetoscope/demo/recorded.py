"""The demo without torch: recordings of the loop that are shipped with the package."""

from __future__ import annotations

import json
import shutil
from importlib.resources import as_file, files
from pathlib import Path

from kinetoscope.demo.walk import Run, Walk


def make(folder: Path) -> Walk:
    """Copy the shipped recordings to `folder` and return the walk over them."""
    with as_file(files("kinetoscope.demo") / "recordings") as source:
        truth = json.loads((source / "truth.json").read_text(encoding="utf-8"))
        for name in ("before.json.gz", "after.json.gz", "train.py"):
            target = name.replace(".json.gz", ".trace.json.gz")
            shutil.copyfile(source / name, folder / target)
    after = Run(folder / "after.trace.json.gz", truth["after_step_ms"])
    return Walk(
        how=truth["how"],
        program=folder / "train.py",
        before=Run(folder / "before.trace.json.gz", truth["before_step_ms"]),
        change=lambda workers: (*truth["change"], *_other_number(truth["workers"], workers)),
        after=lambda _: after,
    )


def _other_number(recorded: int, advised: int) -> list[str]:
    """What was recorded came before the advice."""
    if recorded == advised:
        return []
    return [
        "",
        f"The change was recorded with {recorded} workers, not the {advised} advised above.",
    ]
