"""`kinetoscope tune`: which changes help this program?"""

from __future__ import annotations

from pathlib import Path

import click

from kinetoscope.cli import comparing, exit_codes, experimenting

EPILOG = """\b
Exit codes: 0 measured, 2 wrong usage, 1 the program itself fails.
"""


@click.command(
    "tune",
    epilog=EPILOG,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@comparing.rendering
@experimenting.measuring
@click.option(
    "--only",
    metavar="REMEDIES",
    multiple=True,
    help="Try only these: dataloader-workers or dataloader-workers=4,compile. Repeatable.",
)
@click.option("--skip", metavar="REMEDIES", multiple=True, help="Leave these out. Repeatable.")
@click.option("--list", "listed", is_flag=True, help="List the remedies and end.")
@click.argument("program", metavar="SCRIPT [ARGS]", nargs=-1, type=click.UNPROCESSED)
def command(
    outputs: tuple[str, ...],
    form: str,
    verbose: bool,
    no_color: bool,
    budget: float,
    steps: int,
    seconds: float,
    processes: int,
    diagnosis: Path | None,
    recording: Path | None,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    listed: bool,
    program: tuple[str, ...],
) -> int:
    """Measure known remedies on a program, without editing it.

    Each remedy runs in fresh processes, interleaved with the unchanged program, unprofiled; losses,
    outputs and memory are compared. The accepted ones are then measured together.
    """
    from kinetoscope.errors import UsageError
    from kinetoscope.experiments.registry import remedies_for

    if listed:
        return _list()
    if not program:
        raise UsageError("no program given", hint="kinetoscope tune train.py --epochs 1")
    comparing.check_outputs(outputs)
    chosen = remedies_for(_split(only))
    experiment = experimenting.measured(
        program,
        chosen,
        skip=_split(skip),
        budget=budget,
        steps=steps,
        seconds=seconds,
        processes=processes,
        diagnosis=diagnosis,
        recording=recording,
    )
    experimenting.finish(experiment, outputs=outputs, form=form, verbose=verbose, no_color=no_color)
    return exit_codes.OK


def _split(values: tuple[str, ...]) -> list[str]:
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def _list() -> int:
    from kinetoscope.cli import output
    from kinetoscope.experiments.registry import all_remedies, codes_of

    remedies = all_remedies()
    width = max(len(remedy.id) for remedy in remedies)
    rows = [f"{r.id:<{width}}  {r.title} ({', '.join(codes_of(r)) or 'no rule'})" for r in remedies]
    output.write("\n".join(rows) + "\n")
    return exit_codes.OK
