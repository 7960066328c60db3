"""What `verify` and `tune` share: options, the run, the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kinetoscope.cli import comparing

if TYPE_CHECKING:
    from kinetoscope.experiments.remedy import Remedy
    from kinetoscope.report import RenderOptions
    from kinetoscope.result.experiment import Experiment

F = TypeVar("F", bound=Callable[..., Any])


def measuring(function: F) -> F:
    """Add the options of both commands."""
    decorators = (
        click.option(
            "--budget",
            type=click.FloatRange(min=1),
            metavar="SECONDS",
            default=300.0,
            show_default=True,
            help="Time that all runs together may take.",
        ),
        click.option(
            "--steps",
            type=click.IntRange(min=10),
            metavar="N",
            default=200,
            show_default=True,
            help="Most steps that a run measures.",
        ),
        click.option(
            "--seconds",
            type=click.FloatRange(min=0.05),
            metavar="S",
            default=1.0,
            show_default=True,
            help="Time that a run measures once its steps are steady.",
        ),
        click.option(
            "--nproc-per-node",
            "processes",
            type=click.IntRange(min=1),
            metavar="N",
            default=1,
            show_default=True,
            help="Ranks; more than one are started by torchrun.",
        ),
        click.option(
            "--diagnosis",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="RESULT",
            help="A saved result of this program; one is made when not given.",
        ),
        click.option(
            "--keep-recording",
            "recording",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Where to keep the recording that the diagnosis is made of (trace.json.gz; of "
            "several ranks, trace.rank0.json.gz and so on).",
        ),
    )
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def measured(
    program: Sequence[str],
    chosen: Sequence[tuple[Remedy, str]],
    *,
    skip: Sequence[str],
    budget: float,
    steps: int,
    seconds: float,
    processes: int,
    diagnosis: Path | None,
    recording: Path | None,
) -> Experiment:
    """Run the experiment."""
    from kinetoscope._optional import need
    from kinetoscope.cli.progress import within
    from kinetoscope.errors import InputNotFoundError
    from kinetoscope.experiments.tune import TuneOptions, tune
    from kinetoscope.result.saved import decode

    if not Path(program[0]).is_file():
        raise InputNotFoundError(f"{program[0]}: no such file", hint="Name the script to run.")
    need("torch", extra="capture")
    known = decode(diagnosis.read_bytes(), name=str(diagnosis)) if diagnosis else None
    options = TuneOptions(
        budget_s=budget,
        chosen=tuple(chosen),
        skip=tuple(skip),
        steps=steps,
        seconds=seconds,
        processes=processes,
        diagnosis=known,
        recording=recording,
    )
    with within(budget) as tell:
        return tune(list(program), options, tell)


def finish(
    experiment: Experiment,
    *,
    outputs: Sequence[str],
    form: str,
    verbose: bool,
    no_color: bool,
) -> None:
    """Print and save."""
    from kinetoscope.cli import output

    shown = output.stdout_options(no_color=no_color, all_findings=False, verbose=verbose)
    save(experiment, comparing.check_outputs(outputs), shown)
    show(experiment, form, shown)


def save(experiment: Experiment, files: Sequence[tuple[Path, str]], shown: RenderOptions) -> None:
    """Write an experiment to files and say so on stderr."""
    from dataclasses import replace

    from kinetoscope.cli import output
    from kinetoscope.report.experiment import render

    plain = replace(shown, color=False, unicode=True, width=100)
    for path, form in files:
        output.write_file(path, render(experiment, form, plain))
        click.echo(f"wrote {path}", err=True)


def show(experiment: Experiment, form: str, shown: RenderOptions) -> None:
    """Print an experiment."""
    from kinetoscope.cli import output
    from kinetoscope.report.experiment import render

    output.write(render(experiment, form, shown), utf8=form in ("json", "html"))
