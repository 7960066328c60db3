"""Optional dependencies: the module, or an error with the line that installs it."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from kinetoscope.errors import MissingExtraError


def need(module: str, *, extra: str) -> ModuleType:
    """Import an optional dependency.

    Args:
        module: dotted name to import.
        extra: the extra of this package that brings it.

    Raises:
        MissingExtraError: the module is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # the module is there; something that it needs is not
        raise MissingExtraError(
            f"{module} is not installed",
            hint=f"pip install 'kinetoscope[{extra}]'",
        ) from error
