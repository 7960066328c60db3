"""The rules about the recording itself: what is lost, and what nobody can know then."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from kinetoscope.analysis import Analysis
from kinetoscope.rules.api import Outcome
from kinetoscope.rules.registry import all_rules
from kinetoscope.testing import TraceBuilder
from kinetoscope.trace.readers import read

RULES = {rule.code: rule for rule in all_rules()}


def _operators() -> TraceBuilder:
    """Launches whose kernels, and step marks, would stand behind them in the file."""
    t = TraceBuilder()
    for i in range(400):
        t.op("aten::mm", 10 * i, 8)
        t.runtime("cudaLaunchKernel", 10 * i + 2, 3)
    return t


def _outcomes(path: Path) -> dict[str, Outcome]:
    analysis = Analysis(read(path))
    return {c: RULES[c].run(analysis) for c in ("PR902", "PR905", "PR906", "PR911")}


def test_a_file_that_is_cut_off_is_told_as_that_alone(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.json", tmp_path / "cut.json.gz"
    _operators().write(whole)
    packed = gzip.compress(whole.read_bytes())
    cut.write_bytes(packed[: len(packed) // 2])
    found = _outcomes(cut)
    assert [h.message for h in found["PR905"].hits] == [
        "The file is cut off: what came after is lost."
    ]
    # Marks, stacks and kernels may have stood in what is lost.
    assert {c for c, outcome in found.items() if outcome.hits} == {"PR905"}


def test_a_whole_file_lacks_what_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    _operators().write(path)
    found = _outcomes(path)
    assert {c for c, outcome in found.items() if outcome.hits} == {"PR902", "PR906", "PR911"}


def test_events_that_could_not_be_read_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    _operators().write(path)
    bad = b'{"ph": "X", "name": "x" "y": }'
    head, events, rest = path.read_bytes().partition(b'"traceEvents": [')
    path.write_bytes(head + events + bad + b", " + rest)
    lost = _outcomes(path)["PR905"].hits
    assert [h.message for h in lost] == ["1 event could not be read (broken event)."]


def test_what_follows_from_a_lack_is_not_named_as_another_one() -> None:
    """Launch records that match the device's kernels come with the device's kernels."""
    assert {"device", "launches"} <= RULES["CP204"].needs
    host = TraceBuilder().step(0, 100).op("aten::mm", 10, 80, dims=[[64, 64], [64, 64]])
    analysis = Analysis(host.read())
    lacking = [rule for rule in RULES.values() if "launches" in rule.needs]
    assert lacking
    for rule in lacking:
        reason = rule.run(analysis).reason or ""
        assert "device activity" in reason
        assert "launch records" not in reason


@pytest.mark.parametrize(("recorded_by", "status"), [({}, "fired"), ({"version": 1}, "silent")])
def test_a_capture_warms_up_before_it_records(recorded_by: dict[str, Any], status: str) -> None:
    """A first step that is four times as long is then the program's own, as a prompt is."""
    t = TraceBuilder()
    if recorded_by:
        t.header(kinetoscope=recorded_by)
    for step, (at, length) in enumerate(
        ((0, 4_000), (4_000, 1_000), (5_000, 1_000), (6_000, 1_000))
    ):
        t.step(at, length, number=step)
        t.op("aten::mm", at + 10, 500)
    assert RULES["PR901"].run(Analysis(t.read())).status == status
