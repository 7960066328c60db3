"""Looks into the program's source files: a line's text, and the one call that fits an event."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from kinetoscope.trace.frames import Frame

_LARGEST = 2_000_000
"""Larger files are data, not source."""


class SourceTree:
    """The sources under one folder; without a folder the files that a trace names by whole path.

    Those are read only for functions that lie where the recording says: a trace from elsewhere may
    name a file that is another one here.
    """

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._texts: dict[str, list[str] | None] = {}
        self._modules: dict[str, ast.Module | None] = {}

    def short(self, file: str) -> str:
        """The file's path below the root; the whole path when it lies elsewhere."""
        path = Path(file)
        if self._root is not None and path.is_relative_to(self._root.absolute()):
            return path.relative_to(self._root.absolute()).as_posix()
        return file

    def line(self, file: str, number: int) -> str | None:
        """Text of a line without its indentation; None when the file is not below the folder."""
        return self._text(file, number) if self._root is not None else None

    def line_of(self, frame: Frame, number: int) -> str | None:
        """The same for a line of a frame's function."""
        known = self._root is not None or self.function(frame) is not None
        return self._text(frame.file, number) if known else None

    def _text(self, file: str, number: int) -> str | None:
        lines = self._lines(file)
        if lines is None or not 1 <= number <= len(lines):
            return None
        return lines[number - 1].strip() or None

    def call_line(self, frame: Frame, calls: Sequence[str]) -> int | None:
        """The line of the only call in a function whose callee has one of these names.

        None when the file is not at hand, does not match the recording, or several lines fit.
        """
        function = self.function(frame)
        if function is None:
            return None
        found = sorted({node.lineno for node in _calls(function) if _callee(node) in calls})
        return found[0] if len(found) == 1 else None

    def function(self, frame: Frame) -> ast.AST | None:
        """The function of a frame; None when the file is not at hand or does not match."""
        module = self._module(frame.file)
        return _function_at(module, frame) if module is not None else None

    def first_line(self, frame: Frame) -> int | None:
        """First line of a frame's function by the source; None where that is not at hand."""
        function = self.function(frame)
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            return None
        return _first_line(function)

    def _module(self, file: str) -> ast.Module | None:
        if file not in self._modules:
            lines = self._lines(file)
            try:
                self._modules[file] = ast.parse("\n".join(lines)) if lines is not None else None
            except (SyntaxError, ValueError):
                self._modules[file] = None
        return self._modules[file]

    def _lines(self, file: str) -> list[str] | None:
        if file not in self._texts:
            self._texts[file] = self._read(file)
        return self._texts[file]

    def _read(self, file: str) -> list[str] | None:
        path = self._find(file)
        if path is None:
            return None
        try:
            if path.stat().st_size > _LARGEST:
                return None
            return path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return None

    def _find(self, file: str) -> Path | None:
        """The file under the root whose path ends like the recorded one, if only one does."""
        if not file.endswith(".py"):
            return None
        if self._root is None:
            whole = Path(file)
            return whole if whole.is_absolute() and whole.is_file() else None
        parts = Path(file.replace("\\", "/")).parts
        for first in range(len(parts)):
            tail = Path(*[p for p in parts[first:] if p not in ("/", "..")])
            candidate = self._root / tail
            if candidate.is_file():
                return candidate
        same = self._by_name.get(Path(file).name, [])
        return same[0] if len(same) == 1 else None

    @cached_property
    def _by_name(self) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for path in self._root.rglob("*.py") if self._root else ():
            found.setdefault(path.name, []).append(path)
        return found


_ANONYMOUS: dict[str, type[ast.AST]] = {
    "<genexpr>": ast.GeneratorExp,
    "<listcomp>": ast.ListComp,
    "<setcomp>": ast.SetComp,
    "<dictcomp>": ast.DictComp,
    "<lambda>": ast.Lambda,
}


def _function_at(module: ast.Module, frame: Frame) -> ast.AST | None:
    """The function that starts at the frame's line (its decorators count).

    A frame that was already running when the recording began carries the line that ran then, so
    the innermost function of that name around the line counts as well.
    """
    if frame.function == "<module>":
        return module
    if frame.function in _ANONYMOUS:
        kind = _ANONYMOUS[frame.function]
        found = [n for n in ast.walk(module) if isinstance(n, kind) and n.lineno == frame.line]  # type: ignore[attr-defined]
        return found[0] if len(found) == 1 else None
    around: ast.AST | None = None
    for node in ast.walk(module):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name != frame.function:
            continue
        first = _first_line(node)
        if frame.line in (first, node.lineno):
            return node
        if first <= frame.line <= (node.end_lineno or node.lineno):
            around = node
    return around


def _first_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The line that Python counts from: that of the first decorator, if there is one."""
    return min([function.lineno, *(d.lineno for d in function.decorator_list)])


def _calls(function: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            yield node


def _callee(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""
