"""Options that several commands share, declared once."""

from __future__ import annotations

from collections.abc import Callable
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


def fail_on(function: F) -> F:
    """Add `--fail-on`."""
    return click.option(
        "--fail-on",
        type=click.Choice((*SEVERITIES, "never")),
        default="never",
        show_default=True,
        help="Exit with 1 when a finding is at least this severe.",
    )(function)


def split_codes(values: tuple[str, ...]) -> tuple[str, ...]:
    """Return the code prefixes of repeatable comma lists, in upper case."""
    parts = (part.strip().upper() for value in values for part in value.split(","))
    return tuple(part for part in parts if part)
