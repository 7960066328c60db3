"""`kinetoscope demo`: the whole loop on an example, in under a minute and without a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kinetoscope.demo.walk import Run, Walk
    from kinetoscope.report import RenderOptions
    from kinetoscope.result import Diagnosis
    from kinetoscope.result.view import View


@click.command("demo")
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    default="kinetoscope-demo",
    show_default=True,
    help="Folder for the recordings and the results; made when it is not there.",
)
@click.option("--no-torch", is_flag=True, help="Use the shipped recordings, even with torch here.")
@click.option("--no-color", is_flag=True, help="No colours; NO_COLOR does the same.")
def command(folder: Path, no_torch: bool, no_color: bool) -> None:
    """Show the loop on an example: profile, diagnose, change one thing, verify.

    With torch installed, a small program with a planted bottleneck is trained on the CPU under
    `kinetoscope run`, diagnosed, fixed and measured again. Without torch, recordings of such a loop
    are used.
    """
    from kinetoscope.cli import output
    from kinetoscope.demo import walk as demo

    folder.mkdir(parents=True, exist_ok=True)
    options = output.stdout_options(no_color=no_color, all_findings=False, verbose=False)
    _heading("1 Profile", options)
    walk = _walk(folder, no_torch=no_torch)
    _say(f"{walk.how} The program is {walk.program}.", options)
    before, before_view = _diagnose(walk.before)
    _heading("2 Diagnose", options)
    output.show(before, "terminal", options)
    _heading("3 Change one thing", options)
    promise = demo.predicted(before)
    workers = demo.advised_workers(promise)
    for line in walk.change(workers):
        _say(line, options)
    _heading("4 Verify", options)
    run = walk.after(workers)
    after, after_view = _diagnose(run)
    _say(demo.comparison(walk.before, run, promise), options)
    _say(f"Now: {after.verdict.sentence}", options)
    _save(folder / "before", before, replace(options, view=before_view))
    _save(folder / "after", after, replace(options, view=after_view))
    _heading("Look again", options)
    _say(f"Open {folder / 'before.html'} in a browser: the report, with the timeline.", options)
    _say(f"kinetoscope report {folder / 'before.json'}", options)
    _say(f"kinetoscope analyze {folder / 'before.trace.json.gz'}", options)
    _say(f"The same for a comment on a pull request: {folder / 'before.md'}", options)


def _walk(folder: Path, *, no_torch: bool) -> Walk:
    from kinetoscope.cli.errors import say
    from kinetoscope.demo import live, recorded

    if not no_torch and live.possible():
        try:
            return live.make(folder, lambda text: click.echo(f"{text} ...", err=True))
        except live.LiveDemoError as error:
            say(f"{error.message}; using the shipped recordings instead")
    return recorded.make(folder)


def _diagnose(run: Run) -> tuple[Diagnosis, View]:
    from kinetoscope import viewdata
    from kinetoscope.engine import DiagnoseOptions, examine

    real = None if run.captured else run.step_ms
    options = DiagnoseOptions(real_step_ms=real, source_root=run.trace.parent)
    found = examine([run.trace], options=options)
    view = viewdata.build(found.lead, found.ranks, found.diagnosis.findings)
    return found.diagnosis, view


def _heading(text: str, options: RenderOptions) -> None:
    from rich.text import Text

    _page(Text(f"== {text} ==", style="bold cyan"), options, blank=True)


def _say(text: str, options: RenderOptions) -> None:
    from rich.text import Text

    from kinetoscope.report.text import clean

    style = {"-": "red", "+": "green"}.get(text[:1], "")
    _page(Text(clean(text), style=style), options, blank=False)


def _page(text: object, options: RenderOptions, *, blank: bool) -> None:
    from rich.text import Text

    from kinetoscope.cli import output
    from kinetoscope.report.layout import Page

    assert isinstance(text, Text)  # noqa: S101 - our own callers
    page = Page(width=options.width, color=options.color)
    if blank:
        page.blank()
    page.prose(text)
    if blank:
        page.blank()
    output.write(page.text())


def _save(stem: Path, diagnosis: Diagnosis, options: RenderOptions) -> None:
    from kinetoscope.cli import output

    output.save(diagnosis, [(stem.with_suffix(suffix), form) for suffix, form in _FILES], options)


_FILES = ((".html", "html"), (".json", "json"), (".md", "markdown"))
