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
    return Walk(
        how=truth["how"],
        program=folder / "train.py",
        change=tuple(truth["change"]),
        before=Run(folder / "before.trace.json.gz", truth["before_step_ms"]),
        after=Run(folder / "after.trace.json.gz", truth["after_step_ms"]),
    )
