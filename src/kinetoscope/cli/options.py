"""Options that several commands share, declared once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

SEVERITIES = ("critical", "high", "medium", "low", "info")
"""As in `kinetoscope.result`, written again because importing that costs the time of `--help`."""

FORMATS = ("terminal", "json", "html", "markdown", "sarif", "github")
"""As in `kinetoscope.report`, in the order of use."""


def rendering(function: F) -> F:
    """Add the options that say how a result is shown and where it is written."""
    decorators = (
        click.option(
            "-o",
            "--output",
            "outputs",
            metavar="FILE",
            multiple=True,
            help="Also write the result to FILE; its suffix says the format: .html, .json, .md, "
            ".sarif, .annotations or .txt. Repeat for several files.",
        ),
        click.option(
            "--format",
            "form",
            type=click.Choice(FORMATS),
            default="terminal",
            show_default=True,
            help="What to print on stdout.",
        ),
        click.option("--all-findings", is_flag=True, help="Show every finding, not five."),
        click.option("--verbose", is_flag=True, help="Show all evidence, places and rules."),
        click.option("--no-color", is_flag=True, help="No colours; NO_COLOR does the same."),
    )
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def before(function: F) -> F:
    """Add `--before`."""
    return click.option(
        "--before",
        metavar="BEFORE",
        help="A trace, a saved result or a folder of runs from before a change: terminal, "
        "Markdown and HTML then show what was, what was predicted and what came of it.",
    )(function)


def fail_on(function: F) -> F:
    """Add `--fail-on`."""
    return click.option(
        "--fail-on",
        type=click.Choice((*SEVERITIES, "never")),
        default="never",
        show_default=True,
        help="Exit with 1 when a finding is at least this severe.",
    )(function)


def device_peaks(function: F) -> F:
    """Add `--device-peaks`."""
    return click.option(
        "--device-peaks",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="TOML file with the peak rates of the device, for one that Kinetoscope does not know.",
    )(function)


def split_codes(values: tuple[str, ...]) -> tuple[str, ...]:
    """Return the code prefixes of repeatable comma lists, in upper case."""
    parts = (part.strip().upper() for value in values for part in value.split(","))
    return tuple(part for part in parts if part)


_TIMES = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_SIZES = {"": 1.0, "B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9}


def parse_time(text: str) -> float:
    """Return the seconds of `30s`, `2m` or a plain number of seconds.

    Raises:
        UsageError: not a time above zero.
    """
    return _number(text, {"": 1.0, **_TIMES}, "a time", "30s or 2m")


def parse_size(text: str) -> int:
    """Return the bytes of `500MB`.

    Raises:
        UsageError: not a size above zero.
    """
    return int(_number(text.upper(), _SIZES, "a size", "500MB or 2GB"))


def _number(text: str, units: dict[str, float], what: str, example: str) -> float:
    import re

    from kinetoscope.errors import UsageError

    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2] not in units or float(match[1]) <= 0:
        raise UsageError(f"{text!r} is not {what}", hint=f"Write it as {example}.")
    return float(match[1]) * units[match[2]]
