"""Finds the outermost module of a program that only calls modules, as inference does.

A hook on every module would cost a large share of a small step and make compiled code recompile,
so global hooks are set only while nothing else marks steps, for a few calls; afterwards the
outermost modules carry a hook each. Compiled modules are called through a class of their own,
which is wrapped from the start.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from kinetoscope.capture.torch_parts import COMPILED_MODULE, MODULE_CALL

Mark = Callable[[str, int, str], None]

_CALLS = 3
"""So many outermost calls are looked at."""


class ModuleSeam:
    """Marks calls of outermost modules."""

    def __init__(self, mark: Mark) -> None:
        self._mark = mark
        self._depth = threading.local()
        self._global: list[Any] = []
        self._handles: list[Any] = []
        self._known: set[int] = set()
        self._calls = 0
        self._compiled = False

    def discover(self) -> None:
        """Look at the next calls of modules."""
        from torch.nn.modules import module

        if self._global or self._handles or self._compiled:
            return
        self._depth = threading.local()
        self._global = [
            module.register_module_forward_pre_hook(self._enter),
            module.register_module_forward_hook(self._leave, always_call=True),
        ]
        if self._compiled:  # that was called meanwhile, in another thread
            self.look_no_more()

    def compiled_is_called(self) -> None:
        """Compiled modules mark steps; with hooks on all modules torch warns, and compiles them."""
        if not self._compiled:
            self._compiled = True
            self.look_no_more()

    def remove(self) -> None:
        """Take every hook away."""
        for handle in self._global + self._handles:
            handle.remove()
        self._global, self._handles = [], []

    def _enter(self, module: Any, _args: Any) -> None:
        depth = getattr(self._depth, "value", 0)
        self._depth.value = depth + 1
        if depth == 0 and _calls_on_stack() <= 1:
            self._outermost(module)

    def _leave(self, _module: Any, _args: Any, _result: Any) -> None:
        self._depth.value = max(getattr(self._depth, "value", 0) - 1, 0)

    def _outermost(self, module: Any) -> None:
        self._calls += 1
        if id(module) not in self._known:
            self._known.add(id(module))
            self._handles.append(module.register_forward_pre_hook(self._called))
        if self._calls >= _CALLS:
            self.look_no_more()

    def look_no_more(self) -> None:
        """Take the hooks on all modules away."""
        for handle in self._global:
            handle.remove()
        self._global = []

    def _called(self, module: Any, _args: Any) -> None:
        self._mark("module", id(module), type(module).__name__)


def _calls_on_stack() -> int:
    """How many modules are being called: more than one when the hooks came inside of a call."""
    code = getattr(MODULE_CALL.get(), "__code__", None)
    frame: FrameType | None = sys._getframe()
    number = 0
    while frame is not None:
        number += frame.f_code is code
        frame = frame.f_back
    return number


def wrap_compiled_modules(
    mark: Mark, replace: Callable[[Any, str, Any], None], called: Callable[[], None]
) -> None:
    """Mark calls of `torch.compile(module)`, outside of the compiled region.

    The class inherits its `__call__` in older torch (2.4).

    Args:
        mark: told about each call.
        replace: sets an attribute so that it can be put back.
        called: comes before that, and before anything is compiled.
    """
    compiled = COMPILED_MODULE.get()
    if compiled is None:
        return
    original = compiled.__call__

    @functools.wraps(original)
    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        called()
        mark("module", id(module), type(getattr(module, "_orig_mod", module)).__name__)
        return original(module, *args, **kwargs)

    replace(compiled, "__call__", call)
