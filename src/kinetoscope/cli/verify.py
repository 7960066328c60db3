"""`kinetoscope verify`: does this fix help this program?"""

from __future__ import annotations

from pathlib import Path

import click

from kinetoscope.cli import comparing, exit_codes, experimenting

EPILOG = """\b
Exit codes: 0 a fix helps, 1 none helps or the program itself fails, 5 undecided, 2 wrong usage.
"""


@click.command(
    "verify",
    epilog=EPILOG,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "--fix",
    metavar="CODES",
    multiple=True,
    help="Rule codes (DL101) or remedies (dataloader-workers=4), separated by commas. Repeatable.",
)
@comparing.rendering
@experimenting.measuring
@click.argument("program", metavar="SCRIPT [ARGS]", nargs=-1, type=click.UNPROCESSED)
def command(
    fix: tuple[str, ...],
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
    program: tuple[str, ...],
) -> int:
    """Measure the fix of a finding on a program, without editing it.

    The options stand before SCRIPT; what follows SCRIPT is given to it.
    """
    from kinetoscope.errors import UsageError
    from kinetoscope.experiments.registry import remedies_for

    if not fix:
        raise UsageError(
            "no --fix given, and options stand before SCRIPT",
            hint="kinetoscope verify --fix DL101 train.py --epochs 1",
        )
    if not program:
        raise UsageError("no program given", hint="kinetoscope verify --fix DL101 train.py")
    comparing.check_outputs(outputs)
    names = [part.strip() for value in fix for part in value.split(",") if part.strip()]
    experiment = experimenting.measured(
        program,
        remedies_for(names),
        skip=(),
        budget=budget,
        steps=steps,
        seconds=seconds,
        processes=processes,
        diagnosis=diagnosis,
        recording=recording,
    )
    experimenting.finish(experiment, outputs=outputs, form=form, verbose=verbose, no_color=no_color)
    statuses = {trial.status for trial in experiment.trials}
    if "accepted" in statuses:
        return exit_codes.OK
    return exit_codes.NOT_COMPARABLE if "undecided" in statuses else exit_codes.FOUND
