"""`kinetoscope analyze`: diagnoses recordings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kinetoscope.cli import exit_codes, options

if TYPE_CHECKING:
    from kinetoscope.result import Diagnosis

EPILOG = """\b
Exit codes: 0 fine, 1 a finding at or above --fail-on, 2 wrong usage, 3 input unreadable or
without events, 4 analysed but the input was damaged (1 wins over 4).
"""


@click.command("analyze", epilog=EPILOG)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@options.rendering
@click.option(
    "--select",
    metavar="CODES",
    multiple=True,
    help="Run only rules whose code starts so: DL or DL101,FW. Repeatable.",
)
@click.option(
    "--ignore",
    metavar="CODES",
    multiple=True,
    help="Leave out rules whose code starts so. The longer prefix wins over --select.",
)
@options.before
@options.fail_on
@click.option(
    "--real-step-ms",
    type=click.FloatRange(min=0, min_open=True),
    metavar="X",
    help="Time of a step without the profiler, in ms. Makes the step time and every gain exact "
    "where the profiler slowed the recording down.",
)
@click.option(
    "--source-root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder with the sources of the recorded program: finds exact lines and shows them.",
)
@options.device_peaks
@click.option("--preview", is_flag=True, help="Run rules too that no recording has proved yet.")
def command(
    paths: tuple[str, ...],
    outputs: tuple[str, ...],
    form: str,
    all_findings: bool,
    verbose: bool,
    no_color: bool,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    before: str | None,
    fail_on: str,
    real_step_ms: float | None,
    source_root: Path | None,
    device_peaks: Path | None,
    preview: bool,
) -> int:
    """Say why a recording is slow, and what to change.

    PATH is a trace of torch.profiler (.json or .json.gz), or a folder with one trace a rank.
    Several PATHs are the ranks of one job.
    """
    from kinetoscope.cli import comparing, output
    from kinetoscope.cli.progress import progress

    files = output.check_outputs(outputs, paths)
    from kinetoscope.engine import DiagnoseOptions, examine
    from kinetoscope.metrics.hardware import load_peaks

    chosen = DiagnoseOptions(
        select=options.split_codes(select),
        ignore=options.split_codes(ignore),
        real_step_ms=real_step_ms,
        source_root=source_root,
        preview=preview,
        device_peaks=load_peaks(device_peaks) if device_peaks else None,
    )
    shown = output.stdout_options(no_color=no_color, all_findings=all_findings, verbose=verbose)
    with progress() as update:
        examined = examine(paths, options=chosen, progress=update)
        result = examined.diagnosis
        shown = replace(shown, comparison=comparing.since(before, result, update))
        if output.view_wanted(files, form):
            from kinetoscope import viewdata

            if update:
                update("page", 0, 0)
            view = viewdata.build(examined.lead, examined.ranks, result.findings)
            shown = replace(shown, view=view)
    output.save(result, files, shown)
    output.show(result, form, shown)
    return exit_code(result, fail_on)


def exit_code(result: Diagnosis, fail_on: str) -> int:
    """Return 1 for a finding at or above `fail_on`, else 4 for a lossy input, else 0."""
    if fail_on != "never":
        worst = options.SEVERITIES.index(fail_on)
        if any(options.SEVERITIES.index(f.severity) <= worst for f in result.findings):
            return exit_codes.FOUND
    if any(item.lossy for info in result.inputs for item in info.damage):
        return exit_codes.DAMAGED
    return exit_codes.OK
