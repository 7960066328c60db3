"""`kinetoscope report`: renders a saved result again."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kinetoscope.cli import options

if TYPE_CHECKING:
    from kinetoscope.report import RenderOptions
    from kinetoscope.result.comparison import Comparison
    from kinetoscope.result.experiment import Experiment


@click.command("report")
@click.argument("result", metavar="RESULT")
@options.rendering
@options.before
@options.fail_on
def command(
    result: str,
    outputs: tuple[str, ...],
    form: str,
    all_findings: bool,
    verbose: bool,
    no_color: bool,
    before: str | None,
    fail_on: str,
) -> int:
    """Show a saved result again, or convert it.

    RESULT is a file that `kinetoscope analyze -o result.json` wrote, or compare, check, verify or
    tune; - reads it from stdin.
    """
    from kinetoscope.cli import comparing, output
    from kinetoscope.cli.analyze import exit_code
    from kinetoscope.result import Diagnosis
    from kinetoscope.result.saved import decode_any

    found = decode_any(_read(result), name=result if result != "-" else "stdin")
    shown = output.stdout_options(no_color=no_color, all_findings=all_findings, verbose=verbose)
    if not isinstance(found, Diagnosis):
        _refuse(form, before=before, fail_on=fail_on)
        return _other(found, outputs, form, shown)
    files = output.check_outputs(outputs)
    shown = replace(shown, comparison=comparing.since(before, found))
    output.save(found, files, shown)
    output.show(found, form, shown)
    return exit_code(found, fail_on)


def _refuse(form: str, *, before: str | None, fail_on: str) -> None:
    from kinetoscope.errors import UsageError
    from kinetoscope.report.comparison import COMPARISON_FORMATS

    given = {
        f"--format {form}": form not in COMPARISON_FORMATS,
        "--before": before is not None,
        "--fail-on": fail_on != "never",
    }
    for option, wrong in given.items():
        if wrong:
            raise UsageError(
                f"{option} is for the result of a diagnosis",
                hint="This file holds what compare, check, verify or tune found.",
            )


def _other(
    found: Comparison | Experiment, outputs: tuple[str, ...], form: str, shown: RenderOptions
) -> int:
    """Show a comparison or an experiment; the answer is old, so the exit code is 0."""
    from kinetoscope.cli import comparing, exit_codes, experimenting
    from kinetoscope.result.comparison import Comparison

    files = comparing.check_outputs(outputs)
    if isinstance(found, Comparison):
        comparing.save(found, files, shown)
        comparing.show(found, form, shown)
    else:
        experimenting.save(found, files, shown)
        experimenting.show(found, form, shown)
    return exit_codes.OK


def _read(result: str) -> bytes:
    from kinetoscope.errors import InputNotFoundError, ResultError

    if result == "-":
        return sys.stdin.buffer.read()
    try:
        data = Path(result).read_bytes()
    except FileNotFoundError:
        raise InputNotFoundError(
            f"{result}: no such file",
            hint="Save a result with `kinetoscope analyze TRACE -o result.json`.",
        ) from None
    except OSError as error:
        raise ResultError(
            f"{result} cannot be read: {error.strerror}", hint="Check the path and its rights."
        ) from error
    if data[:2] == b"\x1f\x8b":
        raise ResultError(
            f"{result} is a gzip file, so probably a trace and not a saved result",
            hint=f"Diagnose it with `kinetoscope analyze {result}`.",
        )
    return data
