"""Places that are known in two ways, and files as a trace names them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kinetoscope.analysis.heavy_rows import heavy_rows
from kinetoscope.analysis.locate import Locator
from kinetoscope.analysis.one_place import add_place, without_vague
from kinetoscope.result import Location
from kinetoscope.testing import TraceBuilder
from kinetoscope.trace.kinds import Kind


def test_one_line_that_two_sources_know_is_one_place() -> None:
    found: dict[tuple[object, ...], Location] = {}
    for count in (5, 7):
        add_place(found, Location("train.py", 29, "read", None, True, count))
    add_place(found, Location("train.py", 29, "read", None, False, 1))
    assert [(place.exact, place.count) for place in found.values()] == [(True, 13)]


def test_the_line_that_a_running_function_was_at_is_no_second_place() -> None:
    """Torch names a function that ran before the recording by its line at that moment."""
    found: dict[tuple[object, ...], Location] = {}
    add_place(found, Location("train.py", 29, "read", None, False, 1))
    add_place(found, Location("train.py", 29, "read", None, True, 5))
    assert [(place.exact, place.count) for place in found.values()] == [(True, 6)]


def test_one_exact_line_in_several_modules_is_one_place() -> None:
    found: dict[tuple[object, ...], Location] = {}
    for module in ("GPT / Block / Linear", "GPT / Block / LayerNorm", "GPT / Block"):
        add_place(found, Location("model.py", 12, "forward", module, True, 2))
    assert [(place.module, place.count) for place in found.values()] == [("GPT / Block", 6)]
    add_place(found, Location("model.py", 12, "forward", None, True, 1))
    assert [(place.module, place.count) for place in found.values()] == [(None, 7)]


def test_a_generator_expression_is_in_the_function_of_its_line() -> None:
    found: dict[tuple[object, ...], Location] = {}
    for function in ("<genexpr>", "describe"):
        add_place(found, Location("serve.py", 17, function, None, True, 3))
    assert [(place.function, place.count) for place in found.values()] == [("describe", 6)]


def test_the_first_line_of_a_function_stays_apart_by_module() -> None:
    found: dict[tuple[object, ...], Location] = {}
    for module in ("GPT / Block", "GPT / Head"):
        add_place(found, Location("model.py", 12, "forward", module, False, 2))
    assert [place.module for place in found.values()] == ["GPT / Block", "GPT / Head"]


def test_a_file_below_the_root_is_named_as_in_the_trace(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n    x = slow()\n")
    t = TraceBuilder()
    t.step(0, 10)
    locator = Locator(t.read(), tmp_path)
    inside = locator.at(str(tmp_path / "train.py"), 2, "f", 3, exact=True)
    assert (inside.file, inside.line, inside.count) == ("train.py", 2, 3)
    assert inside.snippet == "x = slow()"
    assert locator.at("/elsewhere/other.py", 2, "f", 3, exact=True).file == "/elsewhere/other.py"


def test_a_generator_is_in_the_function_around_it() -> None:
    t = TraceBuilder()
    t.python("train.py(5): train", 0, 100)
    t.python("train.py(40): clip", 5, 90)
    t.python("<built-in function sum>", 8, 80)
    t.python("train.py(42): <genexpr>", 10, 70)
    t.op("aten::item", 12, 60)
    trace = t.read()
    rows = np.flatnonzero(trace.column("kind") == Kind.CPU_OP)
    place = Locator(trace).locations(rows, trace.column("dur_ns")[rows])[0]
    assert (place.file, place.line, place.function) == ("train.py", 42, "clip")


def test_many_small_rows_outweigh_a_few_large_ones() -> None:
    # Function 3: 9,000 rows of 2 ns = 18,000. Function 7: 10 rows of 1,000 ns = 10,000.
    name = np.repeat(np.array([3, 7], dtype=np.int64), [9000, 10])
    weights = np.where(name == 3, 2, 1000)
    some, scaled, many = heavy_rows(np.arange(9010), name, weights)
    chosen = np.array(some)
    assert chosen.size < 1000
    assert scaled[chosen][name[chosen] == 3].sum() == 18_000
    assert scaled[chosen][name[chosen] == 7].sum() == 10_000
    assert many[chosen][name[chosen] == 3].sum() == pytest.approx(9_000)
    assert many[chosen][name[chosen] == 7].sum() == 10


def test_all_events_of_a_place_are_counted() -> None:
    t = TraceBuilder()
    t.step(0, 70_000)
    t.python("train.py(9): run", 1, 69_000)
    for i in range(6_000):
        t.op("aten::item", 10 + i * 10, 5)
    trace = t.read()
    rows = np.flatnonzero(trace.column("kind") == Kind.CPU_OP)
    locator = Locator(trace)
    (place,) = locator.locations(rows, trace.column("dur_ns")[rows])
    assert (place.function, place.count) == ("run", 6_000)
    twice = np.repeat(rows[:10], 2)  # each event in two pieces
    (place,) = locator.locations(twice, trace.column("dur_ns")[twice])
    assert place.count == 10


def test_a_function_that_ran_before_the_recording_has_the_first_line_of_its_source(
    tmp_path: Path,
) -> None:
    """Torch names it by the line that ran then; that line is no first line."""
    (tmp_path / "train.py").write_text("@timed\ndef train():\n    a()\n    b()\n")
    t = TraceBuilder()
    t.python("train.py(4): train", 0, 100)
    t.op("aten::mm", 12, 60)
    trace = t.read()
    rows = np.flatnonzero(trace.column("kind") == Kind.CPU_OP)
    for root, line in ((tmp_path, 1), (None, None)):
        place = Locator(trace, root).locations(rows, trace.column("dur_ns")[rows])[0]
        assert (place.file, place.line, place.exact) == ("train.py", line, False)


SOURCE = """import torch

def main():
    for step in range(10):
        work()
        work()
        profiler.step()
"""


def _place_in_a_running_loop(root: Path | None) -> Location:
    """The loop stood at its last line when the recording began; `work` is called inside of it."""
    t = TraceBuilder()
    t.python("train.py(7): main", 0, 10_000)
    t.python("train.py(20): work", 5_000, 400)
    for i in range(100):
        t.op("aten::item", 100 + 40 * i, 20)
    trace = t.read()
    rows = np.flatnonzero(trace.column("kind") == Kind.CPU_OP)
    return Locator(trace, root).locations(rows, trace.column("dur_ns")[rows])[0]


def test_the_line_of_a_running_function_is_not_its_first() -> None:
    place = _place_in_a_running_loop(None)
    assert (place.file, place.line, place.function) == ("train.py", None, "main")


def test_the_first_line_of_a_running_function_is_in_the_source(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SOURCE)
    place = _place_in_a_running_loop(tmp_path)
    assert (place.line, place.snippet, place.exact) == (3, "def main():", False)


def test_a_function_that_is_called_keeps_its_first_line() -> None:
    t = TraceBuilder()
    t.python("train.py(7): main", 0, 10_000)
    t.python("train.py(20): work", 5_000, 400)
    t.op("aten::item", 5_100, 200)
    trace = t.read()
    rows = np.flatnonzero(trace.column("kind") == Kind.CPU_OP)
    place = Locator(trace).locations(rows, trace.column("dur_ns")[rows])[0]
    assert (place.line, place.function) == (20, "work")


def test_a_function_of_unknown_line_is_left_out_where_its_lines_are_known() -> None:
    known = Location("train.py", 4, "main", None, True, 3, None)
    vague = Location("train.py", None, "main", None, False, 1, None)
    other = Location("train.py", None, "work", None, False, 1, None)
    assert without_vague([vague, known, other]) == (known, other)
