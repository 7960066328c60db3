"""Where rendered text goes: stdout as it can show it, and files that are whole or not there."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kinetoscope.errors import UsageError

if TYPE_CHECKING:
    from kinetoscope.report import RenderOptions
    from kinetoscope.result import Diagnosis

_FALLBACK_WIDTH = 100
_PIECE = 1 << 16
_GLYPHS = "█▓▒░▞━┅·µ│…•"


def check_outputs(
    outputs: Sequence[str], inputs: Sequence[str | Path] = ()
) -> list[tuple[Path, str]]:
    """Return path and format of each output, before any work is done for it.

    Raises:
        UsageError: no format for a suffix, a folder that is not there, or an output that would
            replace one of the inputs.
    """
    from kinetoscope.report import format_of

    checked = []
    for output in outputs:
        path, form = Path(output), format_of(output)
        if path.is_dir():
            raise UsageError(f"cannot write {output}: it is a folder", hint="Name a file in it.")
        if not path.parent.is_dir():
            raise UsageError(
                f"cannot write {output}: there is no folder {path.parent}",
                hint=f"mkdir -p {path.parent}",
            )
        if path.exists() and any(_is_or_holds(Path(given), path) for given in inputs):
            raise UsageError(
                f"cannot write {output}: it is one of the inputs", hint="Choose another name."
            )
        checked.append((path, form))
    return checked


def _is_or_holds(given: Path, output: Path) -> bool:
    """Whether an output is an input itself, or a recording in a folder of inputs."""
    if given.is_dir():
        return output.name.endswith(".gz") and given.resolve() in output.resolve().parents
    return given.exists() and output.samefile(given)


def view_wanted(files: Sequence[tuple[Path, str]], form: str) -> bool:
    """Whether any output shows more of the recording than the result holds."""
    from kinetoscope.report import FORMATS

    return any(FORMATS[name].shows_view for name in (form, *(name for _, name in files)))


def color_wanted(*, no_color: bool) -> bool:
    """Whether stdout gets colours: a terminal that knows them, and nobody said no."""
    if no_color or os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def unicode_possible() -> bool:
    """Whether the encoding of stdout has the characters that a page uses."""
    try:
        _GLYPHS.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def stdout_options(*, no_color: bool, all_findings: bool, verbose: bool) -> RenderOptions:
    """Return how to render for this stdout."""
    from kinetoscope.report import RenderOptions

    return RenderOptions(
        width=shutil.get_terminal_size((_FALLBACK_WIDTH, 24)).columns,
        color=color_wanted(no_color=no_color),
        unicode=unicode_possible(),
        all_findings=all_findings,
        verbose=verbose,
    )


def show(diagnosis: Diagnosis, form: str, options: RenderOptions) -> None:
    """Print a result. Documents are UTF-8 whatever the terminal's encoding is."""
    from kinetoscope.report import render

    write(render(diagnosis, form, options), utf8=form in ("json", "html", "sarif"))


def write(text: str, *, utf8: bool = False) -> None:
    """Print text; a character that stdout cannot encode is shown as an escape."""
    encoding = "utf-8" if utf8 else sys.stdout.encoding or "ascii"
    data = text.encode(encoding, "backslashreplace")
    shown: str | bytes = data if utf8 else data.decode(encoding)
    # In pieces: an unbuffered stdout drops the rest of a write that a closed pipe cuts, silently.
    for start in range(0, len(shown), _PIECE):
        click.echo(shown[start : start + _PIECE], nl=False, color=True)


def save(diagnosis: Diagnosis, outputs: Sequence[tuple[Path, str]], options: RenderOptions) -> None:
    """Write a result to files and say so on stderr."""
    from dataclasses import replace

    from kinetoscope.report import render

    plain = replace(options, color=False, unicode=True, width=_FALLBACK_WIDTH)
    for path, form in outputs:
        write_file(path, render(diagnosis, form, plain))
        click.echo(f"wrote {path}", err=True)


def write_file(path: Path, text: str) -> None:
    """Write a file at once: readers see the old one or the whole new one.

    Raises:
        UsageError: the place cannot be written.
    """
    path = path.resolve()  # a link stays a link
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        temporary.chmod(0o666 & ~_umask())  # mkstemp makes files that only the owner reads
        temporary.replace(path)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror or error}", hint="Name another place with -o."
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
