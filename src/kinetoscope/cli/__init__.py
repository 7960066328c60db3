"""The `kinetoscope` command. Only this package prints and exits.

Commands are modules that import click and nothing heavy; what they do is imported when they run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code."""
    try:
        code = run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # so early that nothing was there to say so
        code = 130
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code; every error becomes a message here."""
    import click

    from kinetoscope.cli.errors import explain
    from kinetoscope.cli.group import GROUP

    words = list(arguments) or ["--help"]
    try:
        if "_KINETOSCOPE_COMPLETE" in os.environ:  # asked by the shell, see click's docs
            GROUP.main(words, prog_name="kinetoscope")
        with GROUP.make_context("kinetoscope", words) as context:
            code = GROUP.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (Exception, KeyboardInterrupt) as error:  # the one place where no traceback may pass
        return explain(error)
    return code if isinstance(code, int) else 0
