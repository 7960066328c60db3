"""From an exception to a message on stderr and an exit code."""

from __future__ import annotations

import errno
import os
import sys

import click

from kinetoscope.cli.exit_codes import BROKEN_PIPE, INTERRUPTED, UNEXPECTED, USAGE
from kinetoscope.errors import KinetoscopeError


def explain(error: BaseException) -> int:
    """Say what went wrong, without a traceback, and return the exit code."""
    if isinstance(error, (KeyboardInterrupt, click.exceptions.Abort)):
        say("interrupted")
        return INTERRUPTED
    if isinstance(error, KinetoscopeError):
        say(f"error: {error.message}", error.hint)
        return error.exit_code
    if isinstance(error, click.ClickException):
        say(f"error: {error.format_message().rstrip('.')}", _usage_hint(error))
        return USAGE
    if isinstance(error, OSError):
        return _os_error(error)
    return _unexpected(error)


def say(message: str, hint: str = "") -> None:
    """Print one message and its hint on stderr; nothing in them reaches the terminal raw."""
    from kinetoscope.report.text import clean

    lines = [f"kinetoscope: {clean(message)}"]
    if hint:
        lines.append(f"  hint: {clean(hint)}")
    text = "\n".join(lines) + "\n"
    encoding = sys.stderr.encoding or "ascii"
    sys.stderr.write(text.encode(encoding, "backslashreplace").decode(encoding))


def _usage_hint(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "kinetoscope"
    return f"`{path} --help` lists what there is."


def _os_error(error: OSError) -> int:
    if error.filename is None and error.errno in (errno.EPIPE, errno.EINVAL):
        return _broken_pipe()  # Windows says EINVAL
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) and error.filename is None:
        say(f"error: the output cannot be written: {error.strerror}", "Free space, or use -o FILE.")
        _drop_output()
        return USAGE
    if error.filename is None:
        return _unexpected(error)
    say(f"error: {error.filename}: {error.strerror}", "Check the path and its rights.")
    return USAGE


def _broken_pipe() -> int:
    """The reader of our output went away (`| head`): be silent."""
    _drop_output()
    return BROKEN_PIPE


def _drop_output() -> None:
    """What is still buffered goes nowhere: the interpreter would fail to write it at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unexpected(error: BaseException) -> int:
    if os.environ.get("KINETOSCOPE_DEBUG") == "1":
        import traceback

        traceback.print_exception(error)
    say(
        f"error: unexpected {type(error).__name__}: {error}",
        "This is a defect of Kinetoscope. Run again with KINETOSCOPE_DEBUG=1 and report it with "
        "the traceback.",
    )
    return UNEXPECTED
