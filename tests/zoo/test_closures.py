"""An optimizer that is given a closure around a whole training step is diagnosed as without one.

Lightning does that. The recordings are those of programs that call `opt.step()` after the backward
pass; here the ranges of that call, and of torch's frames around it, begin with the step's function.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kinetoscope.engine import diagnose

FOLDER = Path(__file__).parent / "recordings"
CASES = """
b_volumes_pageable cp_fp32_tower cp_odd_classes cp_odd_hidden d_collect_each_batch d_gene_vae_fp32
d_ok_copies_hidden d_ok_many_items fw_sum_tree h2d_pageable_features h_bids_indexed_table
""".split()


def _around_the_step(events: list[dict[str, Any]]) -> int:
    """Let each step of an optimizer begin right after the program's function that makes it."""
    spans = [e for e in events if e.get("ph") == "X"]
    frames = [e for e in spans if e.get("cat") == "python_function"]
    moved = 0
    for mark in (e for e in spans if e["name"].startswith("Optimizer.step#")):
        end = mark["ts"] + mark["dur"]
        around = [
            f
            for f in frames
            if f["tid"] == mark["tid"] and f["ts"] <= mark["ts"] and f["ts"] + f["dur"] >= end
        ]
        around.sort(key=lambda f: f["ts"])
        own = [f["ts"] for f in around if "torch/" not in f["name"] and "<built" not in f["name"]]
        if not own:
            continue
        for depth, event in enumerate([f for f in around if f["ts"] > own[-1]] + [mark]):
            stop, event["ts"] = event["ts"] + event["dur"], own[-1] + 1 + 0.1 * depth
            event["dur"] = stop - event["ts"]
        moved += 1
    return moved


@pytest.mark.parametrize("case", CASES)
def test_a_closure_changes_nothing(case: str, tmp_path: Path) -> None:
    plain = FOLDER / f"{case}.slow.json.gz"
    recording = json.loads(gzip.decompress(plain.read_bytes()))
    assert _around_the_step(recording["traceEvents"]) >= 2
    closed = tmp_path / "closed.json"
    closed.write_text(json.dumps(recording))
    before, after = diagnose([plain]), diagnose([closed])
    assert after.verdict.bottleneck == before.verdict.bottleneck
    assert [f.code for f in after.findings] == [f.code for f in before.findings]
    gains = [f.gain.mid for f in before.findings]
    assert [f.gain.mid for f in after.findings] == pytest.approx(gains, rel=0.01)
