"""What `compare` and `check` share: options, files, exit codes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kinetoscope.cli import exit_codes, options

if TYPE_CHECKING:
    from kinetoscope.engine import Examined, Progress
    from kinetoscope.report import RenderOptions
    from kinetoscope.result import Diagnosis
    from kinetoscope.result.comparison import Comparison
    from kinetoscope.result.difference import ComparisonView
    from kinetoscope.result.view import Flame

F = TypeVar("F", bound=Callable[..., Any])

ALLOWABLE = ("program", "shapes", "devices", "ranks", "steps")
"""As in `kinetoscope.compare`, written again because importing that costs the time of `--help`."""


class Share(click.ParamType[float] if TYPE_CHECKING else click.ParamType):  # type: ignore[misc]
    """A share, `3%` or `0.03`."""

    name = "share"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the share as a number of 0..1."""
        if isinstance(value, float):
            return value
        text = str(value).strip()
        try:
            number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            number = -1.0
        if not 0 <= number < 10:
            self.fail(f"{value!r} is not a share such as 3% or 0.03", param, ctx)
        if number >= 1 and not text.endswith("%"):
            self.fail(f"{value!r} is {100 * number:g} %: did you mean {text}%?", param, ctx)
        return number


def comparing(function: F) -> F:
    """Add the options of both commands."""
    decorators = (
        click.option(
            "--margin",
            type=Share(),
            metavar="SHARE",
            default="3%",
            show_default=True,
            help="Differences below this count as none.",
        ),
        click.option(
            "--allow",
            metavar="WHAT",
            multiple=True,
            type=click.Choice(ALLOWABLE),
            help="Compare although these differ. Repeatable.",
        ),
        click.option(
            "--real-step-ms",
            nargs=2,
            type=click.FloatRange(min=0, min_open=True),
            metavar="BEFORE AFTER",
            help="Step times without the profiler, in ms: makes the outcome exact where the "
            "profiler slowed the recordings down.",
        ),
    )
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def rendering(function: F) -> F:
    """Add the options that say how a comparison is shown and where it is written."""
    decorators = (
        click.option(
            "-o",
            "--output",
            "outputs",
            metavar="FILE",
            multiple=True,
            help="Also write the document to FILE; its suffix says the format: .html, .json, .md "
            "or .txt. Repeat for several files.",
        ),
        click.option(
            "--format",
            "form",
            type=click.Choice(options.FORMATS[:4]),
            default="terminal",
            show_default=True,
            help="What to print on stdout.",
        ),
        click.option("--verbose", is_flag=True, help="Show every changed row."),
        click.option("--no-color", is_flag=True, help="No colours; NO_COLOR does the same."),
    )
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def check_outputs(outputs: Sequence[str]) -> list[tuple[Path, str]]:
    """Return path and format of each output, before any work is done for it.

    Raises:
        UsageError: no format for a suffix, or a folder that is not there.
    """
    from kinetoscope.errors import UsageError
    from kinetoscope.report.comparison import format_of

    checked = []
    for name in outputs:
        path, form = Path(name), format_of(name)
        if path.is_dir() or not path.parent.is_dir():
            raise UsageError(f"cannot write {name}", hint="Name a file in a folder that exists.")
        checked.append((path, form))
    return checked


@dataclass(frozen=True)
class Compared:
    """A comparison, the runs of its second side, and what a page shows beyond it."""

    comparison: Comparison
    new: list[Diagnosis]
    view: ComparisonView | None


def compared(
    before: Sequence[str],
    after: Sequence[str],
    *,
    margin: float,
    allow: tuple[str, ...],
    real_step_ms: tuple[float, float] | None,
    with_view: bool = False,
) -> Compared:
    """Load both sides and compare them; `with_view`: a page is wanted."""
    from kinetoscope.cli.progress import progress
    from kinetoscope.compare import CompareOptions, compare
    from kinetoscope.engine import DiagnoseOptions
    from kinetoscope.runs import load_side

    real = real_step_ms or (None, None)
    flames: list[list[Flame | None]] = [[], []]
    with progress() as update:
        sides = [
            load_side(
                paths,
                options=DiagnoseOptions(real_step_ms=ms),
                progress=update,
                seen=_flames_into(kept) if with_view else None,
            )
            for paths, ms, kept in zip((before, after), real, flames, strict=True)
        ]
    chosen = CompareOptions(margin=margin, allow=frozenset(allow))
    comparison = compare(sides[0], sides[1], options=chosen)
    view = _view(flames, comparison) if with_view else None
    return Compared(comparison, sides[1], view)


def since(
    before: str | None, now: Diagnosis, progress: Progress | None = None
) -> Comparison | None:
    """Return the comparison with what was before; None when nothing was given."""
    if before is None:
        return None
    from kinetoscope.compare import compare
    from kinetoscope.runs import load_side

    return compare(load_side(before, progress=progress), now)


def _flames_into(kept: list[Flame | None]) -> Callable[[Examined], None]:
    def keep(found: Examined) -> None:
        from kinetoscope.viewdata.flame import flame

        kept.append(flame(found.lead))

    return keep


def _view(flames: list[list[Flame | None]], comparison: Comparison) -> ComparisonView | None:
    if not comparison.comparable.answer:
        return None
    from kinetoscope.viewdata.difference import comparison_view

    return comparison_view(*flames)


def view_wanted(files: Sequence[tuple[Path, str]], form: str) -> bool:
    """Whether any output shows more of the recordings than the comparison holds."""
    from kinetoscope.report.comparison import COMPARISON_FORMATS

    names = (form, *(name for _, name in files))
    return any(COMPARISON_FORMATS[name].shows_view for name in names)


def save(comparison: Comparison, files: Sequence[tuple[Path, str]], shown: RenderOptions) -> None:
    """Write a comparison to files and say so on stderr."""
    from dataclasses import replace

    from kinetoscope.cli import output
    from kinetoscope.report.comparison import render

    plain = replace(shown, color=False, unicode=True, width=100)
    for path, form in files:
        output.write_file(path, render(comparison, form, plain))
        click.echo(f"wrote {path}", err=True)


def show(comparison: Comparison, form: str, shown: RenderOptions) -> None:
    """Print a comparison."""
    from kinetoscope.cli import output
    from kinetoscope.report.comparison import render

    output.write(render(comparison, form, shown), utf8=form in ("json", "html"))


def exit_code(comparison: Comparison) -> int:
    """Return 0 when the comparison has an answer, else 5."""
    undecided = comparison.verdict.outcome in ("inconclusive", "not_comparable")
    return exit_codes.NOT_COMPARABLE if undecided else exit_codes.OK
