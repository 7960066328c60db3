"""A function is called once a module is imported, whatever else looks for the module before."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from kinetoscope.capture.import_hook import after_import

NAME = "watched_module"


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{NAME}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, NAME, raising=False)


def test_called_after_the_module_was_executed() -> None:
    seen: list[int] = []
    after_import(NAME, lambda: seen.append(sys.modules[NAME].value))
    importlib.import_module(NAME)
    assert seen == [1]
    importlib.reload(sys.modules[NAME])
    assert seen == [1]


def test_a_library_that_only_asks_whether_there_is_such_a_module() -> None:
    seen: list[str] = []
    after_import(NAME, lambda: seen.append(NAME))
    for _ in range(2):
        spec = importlib.util.find_spec(NAME)
        assert spec is not None
    assert seen == []
    importlib.import_module(NAME)
    assert seen == [NAME]


def test_the_import_system_is_left_as_it_was() -> None:
    before = list(sys.meta_path)
    after_import(NAME, lambda: None)
    importlib.import_module(NAME)
    assert sys.meta_path == before


def test_at_once_where_it_is_imported_already() -> None:
    importlib.import_module(NAME)
    seen: list[str] = []
    after_import(NAME, lambda: seen.append(NAME))
    assert seen == [NAME]


def test_a_module_that_is_not_there() -> None:
    after_import("no_such_module_at_all", lambda: None)
    assert importlib.util.find_spec("no_such_module_at_all") is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_at_all")


def test_two_that_wait_for_the_same_module() -> None:
    """As two captures do, one after the other, in a program that compiles later."""
    seen: list[int] = []
    before = list(sys.meta_path)
    for number in (1, 2):
        after_import(NAME, lambda number=number: seen.append(number))  # type: ignore[misc]
    assert importlib.util.find_spec(NAME) is not None
    importlib.import_module(NAME)
    assert sorted(seen) == [1, 2]
    assert sys.meta_path == before


def test_the_waiting_can_be_ended() -> None:
    before, seen = list(sys.meta_path), list[str]()
    assert after_import(NAME, lambda: seen.append(NAME))() is True
    assert sys.meta_path == before
    importlib.import_module(NAME)
    assert seen == []
