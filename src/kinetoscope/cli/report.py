"""`kinetoscope report`: renders a saved result again."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from kinetoscope.cli import options


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

    RESULT is a file that `kinetoscope analyze -o result.json` wrote; - reads it from stdin.
    """
    from kinetoscope.cli import comparing, output
    from kinetoscope.cli.analyze import exit_code
    from kinetoscope.result.saved import decode

    files = output.check_outputs(outputs)
    diagnosis = decode(_read(result), name=result if result != "-" else "stdin")
    shown = output.stdout_options(no_color=no_color, all_findings=all_findings, verbose=verbose)
    shown = replace(shown, comparison=comparing.since(before, diagnosis))
    output.save(diagnosis, files, shown)
    output.show(diagnosis, form, shown)
    return exit_code(diagnosis, fail_on)


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
