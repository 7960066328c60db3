"""Kinetoscope: why a PyTorch program is slow, which line, what to change, how much that gains.

    import kinetoscope

    result = kinetoscope.diagnose(["trace.json.gz"])
    print(result.verdict.sentence)

Importing the package loads nothing; each name below loads what it needs on first use.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinetoscope.diagnose import DiagnoseOptions as DiagnoseOptions
    from kinetoscope.diagnose import diagnose as diagnose
    from kinetoscope.trace.readers import read as load

__version__ = "0.1.0"

__all__ = ["DiagnoseOptions", "__version__", "diagnose", "load"]

_HOMES = {
    "DiagnoseOptions": ("kinetoscope.diagnose", "DiagnoseOptions"),
    "diagnose": ("kinetoscope.diagnose", "diagnose"),
    "load": ("kinetoscope.trace.readers", "read"),
}


def __getattr__(name: str) -> Any:
    try:
        module, attribute = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _CallableModule(ModuleType):
    """A module that is called like the function of the same name in it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **kwargs)


class _Package(ModuleType):
    """This package; it keeps `kinetoscope.diagnose(...)` callable.

    The import of the submodule `kinetoscope.diagnose` puts the module where the public function
    of that name was, so the module answers the call as well.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "diagnose" and type(value) is ModuleType:
            value.__class__ = _CallableModule
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
