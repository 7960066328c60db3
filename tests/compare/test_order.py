"""Runs made in turns, or one side after the other."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from kinetoscope.compare import compare
from kinetoscope.compare.order import Order, order_of
from kinetoscope.engine import diagnose
from kinetoscope.result import Diagnosis
from kinetoscope.testing import TraceBuilder
from tests.compare.sides import run


def at(second: float | None, step_ms: float = 40.0) -> Diagnosis:
    """A run that began at this second."""
    return moved(run(step_ms), second)


def moved(made: Diagnosis, second: float | None) -> Diagnosis:
    """The same run, begun at another second, or nobody knows when."""
    assert made.profile is not None
    began = None if second is None else round(second * 1e9)
    profile = msgspec.structs.replace(made.profile, started_ns=began)
    return msgspec.structs.replace(made, profile=profile)


@pytest.mark.parametrize(
    ("before", "after", "order"),
    [
        ([1, 3, 5], [2, 4, 6], "turns"),
        ([5, 1, 3], [4, 6, 2], "turns"),
        ([1, 4, 5], [2, 3, 6], "turns"),
        ([1, 2, 3], [4, 5, 6], "one_side_first"),
        ([4, 5, 6], [1, 2], "one_side_first"),
        ([1, 2, 6], [3, 4, 5], "mixed"),
        ([1, 3, 5], [2, 4], "mixed"),
        ([1, None], [2, 3], "unknown"),
        ([1], [2], "unknown"),
        ([1, 3], [1, 3], "unknown"),
    ],
)
def test_the_order_is_read_from_the_clocks(
    before: list[float | None], after: list[float | None], order: Order
) -> None:
    assert order_of([at(s) for s in before], [at(s) for s in after]) == order


def test_one_side_after_the_other_is_said() -> None:
    before = [at(s, 40 + s / 100) for s in (1, 2, 3)]
    after = [at(s, 40 + s / 100) for s in (4, 5, 6)]
    assert any("Make them in turns" in note for note in compare(before, after).notes)
    turns = [at(s, 40 + s / 100) for s in (1, 3, 5)], [at(s, 40 + s / 100) for s in (2, 4, 6)]
    assert not any("in turns" in note for note in compare(*turns).notes)


def test_a_drift_that_both_sides_share_cancels_out() -> None:
    """A machine that becomes 6 % slower from run to run, and a change that gains 10 %."""
    paces = [1.06**k for k in range(10)]
    before = [at(k, 40 * paces[k]) for k in range(0, 10, 2)]
    after = [at(k, 36 * paces[k]) for k in range(1, 10, 2)]
    shuffled = [after[i] for i in (3, 0, 4, 2, 1)]
    assert compare(before, shuffled).verdict.speedup == compare(before, after).verdict.speedup
    unknown = [moved(r, None) for r in before]
    alone = compare(unknown, after).verdict.speedup
    turns = compare(before, after).verdict.speedup
    assert alone is not None
    assert turns is not None
    assert turns.high / turns.low < alone.high / alone.low


def test_a_trace_says_when_it_was_made(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for i in range(4):
        trace.step(1000 * i, 1000).op("aten::mm", 1000 * i + 10, 50)
        trace.kernel("gemm", 1000 * i + 80, 500, launch_at=1000 * i + 20)
    path = trace.write(tmp_path / "t.json")
    found = diagnose(path).profile
    assert found is not None
    base, first = json.loads(path.read_text())["baseTimeNanoseconds"], 0
    assert found.started_ns == base + first
