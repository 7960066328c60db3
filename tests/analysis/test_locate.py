"""Places that are known in two ways, and files as a trace names them."""

from __future__ import annotations

from pathlib import Path

from kinetoscope.analysis.locate import Locator, _add
from kinetoscope.result import Location
from kinetoscope.testing import TraceBuilder


def test_one_line_that_two_sources_know_is_one_place() -> None:
    found: dict[tuple[object, ...], Location] = {}
    for count in (5, 7):
        _add(found, Location("train.py", 29, "read", None, True, count))
    _add(found, Location("train.py", 29, "read", None, False, 1))
    assert [(place.exact, place.count) for place in found.values()] == [(True, 12), (False, 1)]


def test_a_file_below_the_root_is_named_as_in_the_trace(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n    x = slow()\n")
    t = TraceBuilder()
    t.step(0, 10)
    locator = Locator(t.read(), tmp_path)
    inside = locator.at(str(tmp_path / "train.py"), 2, "f", 3, exact=True)
    assert (inside.file, inside.line, inside.count) == ("train.py", 2, 3)
    assert inside.snippet == "x = slow()"
    assert locator.at("/elsewhere/other.py", 2, "f", 3, exact=True).file == "/elsewhere/other.py"
