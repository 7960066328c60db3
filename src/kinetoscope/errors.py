"""Every error that a user can meet, with its exit code and the next step.

    KinetoscopeError            1
    ├── UsageError              2   wrong option, unknown rule, contradicting arguments
    │   └── MissingExtraError   2   an optional dependency is not installed
    ├── InputError              3   the input cannot be used at all
    │   ├── InputNotFoundError  3   no such file or folder
    │   ├── FormatError         3   the file is not a trace that we know
    │   └── EmptyTraceError     3   a trace without events
    ├── ResultError             3   a saved result cannot be read
    └── NotComparableError      5   the two inputs answer different questions

Exit code 4 (analysed, but the input was damaged) is not an error: the result says so itself.
Only `kinetoscope.cli` prints errors and exits.
"""

from __future__ import annotations


class KinetoscopeError(Exception):
    """Base of all errors raised on purpose.

    Args:
        message: one sentence that names the file or option and what is wrong.
        hint: one sentence that says what to do next.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(KinetoscopeError):
    """The command line or the call contradicts itself or names something unknown."""

    exit_code = 2


class MissingExtraError(UsageError):
    """An optional dependency is needed and not installed."""


class InputError(KinetoscopeError):
    """The input cannot be analysed."""

    exit_code = 3


class InputNotFoundError(InputError):
    """No such file or folder."""


class FormatError(InputError):
    """The file is not in a format that a reader knows, or nothing in it could be read."""


class EmptyTraceError(InputError):
    """The file is a trace, but holds no event."""


class ResultError(InputError):
    """A saved result is not one of ours, or is newer than this version."""


class NotComparableError(KinetoscopeError):
    """Two inputs cannot be compared."""

    exit_code = 5
