"""`kinetoscope check`: fails a change that slows the step down."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kinetoscope.cli import comparing, exit_codes

if TYPE_CHECKING:
    from kinetoscope.result import Diagnosis

EPILOG = """\b
Exit codes: 0 no regression, 1 regression, 5 undecided or not comparable, 2 wrong usage, 3 input
unreadable.
"""


@click.command("check", epilog=EPILOG)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option(
    "--against",
    metavar="BASELINE",
    required=True,
    help="What to compare with: a saved result, a trace, a folder of repeated runs, or a history "
    "file (.jsonl) of which the newest ten results count.",
)
@click.option(
    "--max-regression",
    type=comparing.Share(),
    metavar="SHARE",
    default="3%",
    show_default=True,
    help="A step may take this much more time.",
)
@click.option("--strict", is_flag=True, help="Exit with 5 while a regression is still possible.")
@click.option(
    "--append",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Add the new results to this history file (.jsonl) when the check passes.",
)
@click.option(
    "--summary",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    envvar="GITHUB_STEP_SUMMARY",
    help="Append a Markdown summary to this file; GITHUB_STEP_SUMMARY does the same.",
)
@comparing.rendering
@comparing.comparing
def command(
    paths: tuple[str, ...],
    against: str,
    max_regression: float,
    strict: bool,
    append: Path | None,
    summary: Path | None,
    outputs: tuple[str, ...],
    form: str,
    verbose: bool,
    no_color: bool,
    margin: float,
    allow: tuple[str, ...],
    real_step_ms: tuple[float, float] | None,
) -> int:
    """Fail when a step takes more time than it did in a baseline.

    PATHs are the new runs: traces, saved results, or folders of repeated runs.
    """
    from kinetoscope.cli import output
    from kinetoscope.compare.regression import judge

    files = comparing.check_outputs(outputs)
    if append is not None and append == Path(against) and not append.exists():
        return _start_history(append, paths)
    shown = output.stdout_options(no_color=no_color, all_findings=False, verbose=verbose)
    found = comparing.compared(
        [against],
        paths,
        margin=margin,
        allow=allow,
        real_step_ms=real_step_ms,
        with_view=comparing.view_wanted(files, form),
    )
    result, shown = found.comparison, replace(shown, difference=found.view)
    answer = judge(result, max_regression=max_regression, strict=strict)
    comparing.save(result, files, shown)
    comparing.show(result, form, shown)
    click.echo(answer.sentence, err=True)
    if summary is not None:
        _summarise(summary, answer.sentence, result)
    if append is not None and answer.passed:
        _append(append, found.new)
    if answer.status == "regressed":
        return exit_codes.FOUND
    return exit_codes.OK if answer.decided else exit_codes.NOT_COMPARABLE


def _start_history(path: Path, runs: tuple[str, ...]) -> int:
    """The history does not exist yet: these runs are its beginning, and nothing is compared."""
    from kinetoscope.runs import load_side

    _append(path, load_side(runs))
    click.echo("There was no history: this is its beginning, nothing was compared.", err=True)
    return exit_codes.OK


def _summarise(path: Path, sentence: str, result: object) -> None:
    from kinetoscope.report.comparison import render
    from kinetoscope.report.markdown import escape

    text = f"{escape(sentence)}\n\n{render(result, 'markdown')}"  # type: ignore[arg-type]
    _add(path, text + "\n")


def _append(path: Path, runs: list[Diagnosis]) -> None:
    """Add one line a run; the whole text in one write, so that parallel jobs do not mix lines."""
    import msgspec

    _add(path, "".join(msgspec.json.encode(run).decode() + "\n" for run in runs))
    click.echo(f"added {len(runs)} to {path}", err=True)


def _add(path: Path, text: str) -> None:
    from kinetoscope.errors import UsageError

    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        with os.fdopen(handle, "a", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", hint="Name another place."
        ) from error
