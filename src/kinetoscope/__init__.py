"""Kinetoscope: why a PyTorch program is slow, which line, what to change, how much that gains.

    import kinetoscope

    result = kinetoscope.diagnose(["trace.json.gz"])
    print(result.verdict.sentence)

Importing the package loads nothing; each name below loads what it needs on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinetoscope.capture.sharing import step as step
    from kinetoscope.engine import DiagnoseOptions as DiagnoseOptions
    from kinetoscope.engine import diagnose as diagnose
    from kinetoscope.recording import profile as profile
    from kinetoscope.recording import steps as steps
    from kinetoscope.runs import compare_runs as compare_runs
    from kinetoscope.trace.readers import read as load

__version__ = "0.1.0"

__all__ = [
    "DiagnoseOptions",
    "__version__",
    "compare_runs",
    "diagnose",
    "load",
    "profile",
    "step",
    "steps",
]

_HOMES = {
    "DiagnoseOptions": ("kinetoscope.engine", "DiagnoseOptions"),
    "compare_runs": ("kinetoscope.runs", "compare_runs"),
    "diagnose": ("kinetoscope.engine", "diagnose"),
    "profile": ("kinetoscope.recording", "profile"),
    "step": ("kinetoscope.capture.sharing", "step"),
    "steps": ("kinetoscope.recording", "steps"),
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
