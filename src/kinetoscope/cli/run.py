"""`kinetoscope run`: runs a program, captures it, and says why it is slow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kinetoscope.cli import options

if TYPE_CHECKING:
    from kinetoscope.capture.outcome import Recording
    from kinetoscope.capture.running import Ending

EPILOG = """\b
The program's own output and exit code are unchanged; what Kinetoscope says goes to stderr.
Outputs: .json .md .html .txt are results, .json.gz is the recording itself.
"""


@click.command(
    "run",
    epilog=EPILOG,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("-m", "as_module", is_flag=True, help="PROGRAM is a module, as in `python -m`.")
@click.option(
    "-o",
    "--output",
    "outputs",
    metavar="FILE",
    multiple=True,
    help="Write the result (.html, .json, .md, .txt) or the recording (.json.gz) to FILE. "
    "Repeatable.",
)
@click.option(
    "--budget",
    metavar="TIME",
    default="60s",
    show_default=True,
    help="Time that the capture may take from the first step on, waiting included: 30s, 2m.",
)
@click.option(
    "--max-size",
    metavar="SIZE",
    default="200MB",
    show_default=True,
    help="Largest trace of the full window, before compression.",
)
@click.option("--stop-after", is_flag=True, help="End the program once enough is recorded.")
@click.option(
    "--ranks",
    metavar="LIST",
    default="all",
    show_default=True,
    help="Under torchrun: the ranks to capture, such as 0,1.",
)
@options.device_peaks
@click.option("--all-findings", is_flag=True, help="Show every finding, not five.")
@click.option("--verbose", is_flag=True, help="Show all evidence, places and rules.")
@click.option("--no-color", is_flag=True, help="No colours; NO_COLOR does the same.")
@click.option("--quiet", is_flag=True, help="Do not print the result; -o still writes it.")
@click.argument("program", metavar="PROGRAM")
@click.argument("arguments", metavar="[ARGUMENTS]...", nargs=-1, type=click.UNPROCESSED)
def command(
    as_module: bool,
    outputs: tuple[str, ...],
    budget: str,
    max_size: str,
    stop_after: bool,
    ranks: str,
    device_peaks: Path | None,
    all_findings: bool,
    verbose: bool,
    no_color: bool,
    quiet: bool,
    program: str,
    arguments: tuple[str, ...],
) -> int:
    """Run a program as Python would, record its steps, and say why it is slow.

    PROGRAM is a Python script, or with -m a module. The steps are found without a change to it.
    """
    from kinetoscope.capture.options import CaptureOptions
    from kinetoscope.capture.program import Program
    from kinetoscope.capture.ranks import Place, parse_ranks
    from kinetoscope.capture.running import run_alone, run_program
    from kinetoscope.cli import run_result

    chosen_ranks = parse_ranks(ranks)
    place = Place.here().led_by(chosen_ranks)
    what = Program(program, arguments, module=as_module)
    results, traces = run_result.check(outputs)
    peaks = run_result.given_peaks(device_peaks)
    chosen = CaptureOptions(
        budget_s=options.parse_time(budget),
        size_bytes=options.parse_size(max_size),
        stop_after=stop_after,
        name=what.name,
    )
    shown = run_result.Shown(
        results=results,
        traces=traces,
        all_findings=all_findings,
        verbose=verbose,
        no_color=no_color,
        quiet=quiet,
        name=what.name,
        ranks=place.recording(chosen_ranks),
        device_peaks=peaks,
    )
    if not place.captures(chosen_ranks):
        return run_alone(what)

    def finish(recording: Recording, ending: Ending) -> None:
        run_result.finish(recording, ending, place, shown)

    root = Path.cwd() if as_module else Path(program).resolve().parent
    shown.root = root
    return run_program(what, chosen, place, finish, say=_say)


def _say(text: str) -> None:
    from kinetoscope.cli.errors import say

    sys.stdout.flush()
    say(text)
