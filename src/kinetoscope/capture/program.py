"""Runs a script or module as `python script.py` and `python -m module` do."""

from __future__ import annotations

import importlib.util
import io
import sys
import types
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any

from kinetoscope.errors import UsageError


class Program:
    """What is to be run; `prepare` makes the process look as if Python had been started with it."""

    def __init__(self, target: str, arguments: Sequence[str], *, module: bool) -> None:
        self.target = target
        self.arguments = tuple(arguments)
        self.module = module

    @property
    def name(self) -> str:
        """A short name for files: the stem of the script or the last part of the module."""
        return self.target.rpartition(".")[2] if self.module else Path(self.target).stem

    def run(self) -> None:
        """Run to the end.

        Raises:
            UsageError: there is no such script or module.
            BaseException: whatever the program raises, `SystemExit` included.
        """
        code, main = self._module() if self.module else self._script()
        sys.modules["__main__"] = main
        exec(code, main.__dict__)  # noqa: S102 - running the user's program is the point

    def _script(self) -> tuple[types.CodeType, types.ModuleType]:
        path = Path(self.target)
        if path.is_dir():
            return self._folder(path)
        try:
            with io.open_code(str(path.resolve())) as opened:
                source = opened.read()
        except OSError as error:
            raise UsageError(
                f"cannot run {self.target}: {error.strerror}",
                hint="kinetoscope run [options] script.py [arguments]",
            ) from error
        self._set_path(str(path.resolve().parent))
        sys.argv = [self.target, *self.arguments]
        file = str(path.absolute())
        main = _main_module(file, None, SourceFileLoader("__main__", file))
        return _compiled(source, file), main

    def _folder(self, path: Path) -> tuple[types.CodeType, types.ModuleType]:
        inner = path / "__main__.py"
        if not inner.is_file():
            raise UsageError(
                f"cannot run {self.target}: it is a folder without __main__.py",
                hint="kinetoscope run [options] script.py [arguments]",
            )
        self._set_path(self.target)
        sys.argv = [self.target, *self.arguments]
        main = _main_module(str(inner), None, SourceFileLoader("__main__", str(inner)))
        return _compiled(inner.read_bytes(), str(inner)), main

    def _module(self) -> tuple[types.CodeType, types.ModuleType]:
        self._set_path(str(Path.cwd()))
        sys.argv = ["-m", *self.arguments]
        spec = self._find_module()
        if spec.submodule_search_locations is not None:
            spec = self._find_module(".__main__")
        loader: Any = spec.loader
        code = loader.get_code(spec.name) if hasattr(loader, "get_code") else None
        if code is None:
            raise UsageError(f"cannot run -m {self.target}: no code", hint="Name a Python module.")
        sys.argv[0] = spec.origin or self.target
        main = _main_module(spec.origin, spec, loader)
        return code, main

    def _find_module(self, suffix: str = "") -> ModuleSpec:
        try:
            spec = importlib.util.find_spec(self.target + suffix)
        except (ImportError, ValueError) as error:
            raise UsageError(
                f"cannot run -m {self.target}: {error}", hint="Check the name and PYTHONPATH."
            ) from error
        if spec is None or spec.loader is None:
            raise UsageError(
                f"cannot run -m {self.target}: there is no module {self.target}{suffix}",
                hint="Check the name and PYTHONPATH.",
            )
        return spec

    def _set_path(self, first: str) -> None:
        """Python puts the script's folder first; ours stands there now."""
        if not getattr(sys.flags, "safe_path", False):
            if sys.path and _is_ours(sys.path[0]):
                sys.path.pop(0)
            sys.path.insert(0, first)


def _compiled(source: bytes, file: str) -> types.CodeType:
    code: types.CodeType = compile(source, file, "exec", dont_inherit=True)
    return code


def _is_ours(entry: str) -> bool:
    """The entry that Python made for our own command: its folder, or the current one with -m."""
    return entry in ("", str(Path.cwd()), str(Path(sys.argv[0]).resolve().parent))


def _main_module(file: str | None, spec: ModuleSpec | None, loader: Any) -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __builtins__=sys.modules["builtins"],
        __file__=file,
        __cached__=None,
        __loader__=loader,
        __package__=spec.parent if spec else None,
        __spec__=spec,
    )
    return main


_OWN = str(Path(__file__).parent)
"""Where wrappers of ours live: their frames stand between those of the program."""


def without_own_frames(error: BaseException) -> BaseException:
    """The error, and what it came from, with tracebacks that begin with the program's own code."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _cleaned(one.__traceback__)
        todo += [one.__cause__, one.__context__]
    return error


def _cleaned(trace: types.TracebackType | None) -> types.TracebackType | None:
    kept = [t for t in _links(trace) if not t.tb_frame.f_code.co_filename.startswith(_OWN)]
    if not kept:
        return trace
    for one, following in zip(kept, [*kept[1:], None], strict=True):
        one.tb_next = following
    return kept[0]


def _links(trace: types.TracebackType | None) -> Iterator[types.TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next
