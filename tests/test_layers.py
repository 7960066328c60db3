"""Imports go downwards: each layer sees lower numbers only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "kinetoscope"

LAYERS: dict[str, float] = {
    "errors": -1,
    "units": 0,
    "_optional": 0,
    "result": 0,
    "trace": 1,
    "capture": 1.5,
    "metrics": 2,
    "replay": 2,
    "sources": 2,
    "locate": 2.5,
    "analysis": 3,
    "rules": 4,
    "verdict": 5,
    "viewdata": 5,
    "notes": 5,
    "outlook": 5.2,
    "engine": 5.5,
    "profiling": 7,
    "recording": 8,
    "report": 6,
    "compare": 6,
    "runs": 6.5,
    "history": 7,
    "experiments": 8,
    "monitor": 8,
    "integrations": 8,
    "serve": 8,
    "testing": 9,
    "demo": 9,
    "cli": 10,
    "__main__": 11,
}
"""As in the table of the architecture; `testing` and `demo` stand on top of what they show."""

SIDEWAYS = {("metrics", "replay"), ("replay", "metrics")}
"""Of one number, and still allowed: both are pure functions of a trace."""

RESULT_ONLY = ("report", "compare", "history", "serve")
"""See the result and nothing that made it."""

OPEN_TO_RESULT_ONLY = {"result", "units", "errors", "_optional"}


def _part(file: Path) -> str:
    first = file.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def _files() -> list[Path]:
    skipped = ("demo/program", "demo/recordings")
    return [
        file
        for file in sorted(SOURCE.rglob("*.py"))
        if not file.relative_to(SOURCE).as_posix().startswith(skipped)
    ]


def _imports(file: Path) -> Iterator[tuple[str, int]]:
    """The parts of this package that a file imports, imports in functions included.

    Imports for type checkers only are left out: they cannot make a cycle.
    """
    tree = ast.parse(file.read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: write the full name"
            names = [node.module or ""]
            if node.module == "kinetoscope":
                names = [f"kinetoscope.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "kinetoscope" and len(parts) > 1 and parts[1] != "__version__":
                yield parts[1], node.lineno


def test_every_part_has_a_layer() -> None:
    parts = {_part(file) for file in _files()} - {"__init__"}
    assert parts <= set(LAYERS), parts - set(LAYERS)


@pytest.mark.parametrize("file", _files(), ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_go_down(file: Path) -> None:
    part = _part(file)
    if part == "__init__":
        return  # the public names, loaded on use
    for other, line in _imports(file):
        if other == part:
            continue
        where = f"{file.relative_to(SOURCE)}:{line} imports kinetoscope.{other}"
        allowed = LAYERS[other] < LAYERS[part] or (part, other) in SIDEWAYS
        assert allowed, f"{where}, which is not below {part}"


@pytest.mark.parametrize("part", RESULT_ONLY)
def test_outputs_see_the_result_only(part: str) -> None:
    for file in (SOURCE / part).rglob("*.py"):
        seen = {other for other, _ in _imports(file)} - {part} - OPEN_TO_RESULT_ONLY
        assert not seen, f"{file.relative_to(SOURCE)} imports {sorted(seen)}"


def test_only_the_rule_engine_and_the_command_line_catch_everything() -> None:
    # These two show whatever the user's program raises, as Python would.
    programs = {"capture/running.py", "experiments/_child.py"}
    allowed = {"rules/api.py", "cli/__init__.py", *programs}
    for file in _files():
        name = file.relative_to(SOURCE).as_posix()
        if name in allowed or name.startswith("monitor/"):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ExceptHandler):
                caught = ast.unparse(node.type) if node.type else "Exception"
                assert "BaseException" not in caught, f"{name}:{node.lineno}"
                assert caught != "Exception", f"{name}:{node.lineno}"
