"""Calls a function right after a module was imported for the first time.

The capture must not import torch before the program does: torch reads the environment when it
is imported, and a program may set variables before that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


def after_import(name: str, then: Callable[[], None]) -> Callable[[], bool]:
    """Call `then` once `name` is imported; at once when it already is.

    Returns:
        What ends the waiting.
    """
    watcher = _Watcher(name, then)
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, watcher)
    return watcher.end


class _Watcher:
    """A finder that finds what the usual one finds, and adds a call after the execution.

    It stays until the module is executed: programs look for a module before they import it, or
    without ever doing so (`importlib.util.find_spec`), and so do libraries.
    """

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then
        self._looking = False

    def end(self) -> bool:
        """Wait no longer; False when it was over already."""
        waited = self in sys.meta_path
        if waited:
            sys.meta_path.remove(self)
        return waited

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Part of the import protocol."""
        if fullname != self._name or self._looking:
            return None
        self._looking = True  # another watcher of the same module asks in its turn
        try:
            spec = self._usual(fullname, path, target)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            self._wrap(spec.loader)
        return spec

    def _usual(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
        return PathFinder.find_spec(name, path, target)

    def _wrap(self, loader: Any) -> None:
        execute, then = loader.exec_module, self._then

        def exec_module(module: ModuleType) -> None:
            loader.__dict__.pop("exec_module", None)  # another watcher may have done it
            execute(module)
            if self.end():
                then()

        loader.exec_module = exec_module
