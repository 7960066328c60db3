"""`kinetoscope compare`: did it help?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from kinetoscope.cli import comparing, exit_codes

if TYPE_CHECKING:
    from kinetoscope.report import RenderOptions
    from kinetoscope.result.comparison import Comparison

EPILOG = """\b
Exit codes: 0 faster, slower or no difference, 5 inconclusive or not comparable, 2 wrong usage,
3 input unreadable.
"""


@click.command("compare", epilog=EPILOG)
@click.argument("paths", metavar="BEFORE AFTER", nargs=-1, required=True)
@comparing.rendering
@comparing.comparing
@click.option(
    "--scaling",
    type=click.Choice(("auto", "weak", "strong")),
    help="Paths are jobs of different numbers of ranks: say how well the program scales. "
    "weak: each rank does the same work; auto finds out. Chosen for more than two paths.",
)
def command(
    paths: tuple[str, ...],
    outputs: tuple[str, ...],
    form: str,
    verbose: bool,
    no_color: bool,
    margin: float,
    allow: tuple[str, ...],
    real_step_ms: tuple[float, float] | None,
    scaling: str | None,
) -> int:
    """Say whether a change helped: faster, slower, no difference, or not comparable.

    BEFORE and AFTER are traces, saved results, folders of repeated runs (three or more,
    interleaved, are best), or folders with the ranks of a job. With more than two paths, one a
    number of ranks, the scaling is shown.
    """
    from kinetoscope.cli import output
    from kinetoscope.errors import UsageError

    files = comparing.check_outputs(outputs)
    shown = output.stdout_options(no_color=no_color, all_findings=False, verbose=verbose)
    if len(paths) < 2:
        raise UsageError(
            "compare needs two paths", hint="kinetoscope compare BEFORE AFTER; --help says more."
        )
    if scaling is not None or len(paths) > 2:
        return _scaled(paths, files=files, form=form, shown=shown, kind=scaling)
    found = comparing.compared(
        paths[:1],
        paths[1:],
        margin=margin,
        allow=allow,
        real_step_ms=real_step_ms,
        with_view=comparing.view_wanted(files, form),
    )
    shown = replace(shown, difference=found.view)
    comparing.save(found.comparison, files, shown)
    comparing.show(found.comparison, form, shown)
    return comparing.exit_code(found.comparison)


def _scaled(
    paths: tuple[str, ...],
    *,
    files: list,  # type: ignore[type-arg]
    form: str,
    shown: RenderOptions,
    kind: str | None,
) -> int:
    from kinetoscope.cli.progress import progress
    from kinetoscope.compare.scaling import compare_scaling
    from kinetoscope.runs import load_side

    with progress() as update:
        sides = [load_side(path, progress=update) for path in paths]
    wanted = kind if kind in ("weak", "strong") else None
    result: Comparison = compare_scaling(sides, wanted)  # type: ignore[arg-type]
    comparing.save(result, files, shown)
    comparing.show(result, form, shown)
    return exit_codes.OK
