"""What `kinetoscope run` does with a recording: diagnose, show, write."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from kinetoscope.cli.errors import explain, say
from kinetoscope.errors import UsageError
from kinetoscope.units import duration

if TYPE_CHECKING:
    from kinetoscope.capture.outcome import Recording
    from kinetoscope.capture.ranks import Place
    from kinetoscope.capture.running import Ending
    from kinetoscope.engine import Examined
    from kinetoscope.metrics.hardware import Peaks


@dataclass
class Shown:
    """What the user wants to see and to keep."""

    results: list[tuple[Path, str]]
    traces: list[Path]
    all_findings: bool
    verbose: bool
    no_color: bool
    quiet: bool
    ranks: tuple[int, ...] = ()
    name: str = "program"
    root: Path | None = None
    device_peaks: Peaks | None = None


def check(outputs: Sequence[str]) -> tuple[list[tuple[Path, str]], list[Path]]:
    """Tell results and recordings apart, before the program runs.

    Raises:
        UsageError: an output that cannot be written.
    """
    from kinetoscope.cli import output
    from kinetoscope.profiling import is_trace_output

    traces = [Path(name) for name in outputs if is_trace_output(name)]
    for path in traces:
        if not path.parent.is_dir():
            raise UsageError(
                f"cannot write {path}: there is no folder {path.parent}",
                hint=f"mkdir -p {path.parent}",
            )
    return output.check_outputs([n for n in outputs if not is_trace_output(n)]), traces


def given_peaks(path: Path | None) -> Peaks | None:
    """Read `--device-peaks` before the program runs.

    Raises:
        FormatError: not such a file.
    """
    if path is None:
        return None
    from kinetoscope.metrics.hardware import load_peaks

    return load_peaks(path)


def finish(recording: Recording, ending: Ending, place: Place, shown: Shown) -> None:
    """Complete the recording and tell what it says; nothing here changes the exit code."""
    try:
        _finish(recording, ending, place, shown)
    except (Exception, KeyboardInterrupt) as error:  # a defect of ours is no failure of the program
        explain(error)
    finally:
        shutil.rmtree(recording.recorder.folder, ignore_errors=True)


def _finish(recording: Recording, ending: Ending, place: Place, shown: Shown) -> None:
    from kinetoscope import profiling
    from kinetoscope.capture import gathering

    captured = profiling.complete(recording, say)
    if captured.trace is None:
        say(_nothing(recording), _what_to_do(captured.problems, ending))
    traces = [captured.trace] if captured.trace else []
    for trace, wanted in product(traces, shown.traces):
        target = gathering.rank_name(wanted, place) if place.many else wanted
        profiling.copy_trace(trace, target)
        say(f"wrote {target}")
    if place.many:
        gathering.hand_in(captured.trace, place, shown.name)
        if place.rank != place.lead:
            return
        traces = gathering.gather(place, shown.ranks, shown.name, say)
    if traces:
        _tell(traces, place, shown)


def _tell(traces: list[Path], place: Place, shown: Shown) -> None:
    """Diagnose and show."""
    from kinetoscope import profiling
    from kinetoscope.capture import gathering

    kept = {str(trace): trace.name for trace in traces}
    if shown.traces and not place.many:
        kept = {str(traces[0]): str(shown.traces[0])}
    _show(
        profiling.examine_capture(traces, kept, shown.root, device_peaks=shown.device_peaks), shown
    )
    if place.many:
        gathering.clear(place)


def _what_to_do(problems: list[str], ending: Ending) -> str:
    """What was in the way has been said; this is the next step."""
    from kinetoscope.capture.watcher import TOO_SHORT

    if not problems:
        return f"The program {ending.how} before anything was recorded."
    if not problems[-1].startswith(TOO_SHORT):
        return ""
    if ending.how in ("raised", "interrupted", "terminated"):
        return "It did not get so far as to the windows; what was said above ended it."
    return "Let it make more steps: a baseline takes about 1 s of them, and the windows follow it."


def _nothing(recording: Recording) -> str:
    """That there is no recording, and what a step takes where the baseline says so."""
    timed = recording.facts.get("baseline")
    if not timed:
        return "nothing was recorded"
    return (
        f"nothing was recorded but what a step takes: {duration(timed['step_ns'])}, without a "
        f"profiler, over {timed['steps']:,} steps"
    )


def _show(found: Examined, shown: Shown) -> None:
    from kinetoscope import profiling
    from kinetoscope.cli import output
    from kinetoscope.report import render

    options = output.stdout_options(
        no_color=shown.no_color or not sys.stderr.isatty(),
        all_findings=shown.all_findings,
        verbose=shown.verbose,
    )
    page = options
    if output.view_wanted(shown.results, "terminal"):
        page = replace(options, view=profiling.view_of(found))
    output.save(found.diagnosis, shown.results, page)
    if not shown.quiet:
        encoding = sys.stderr.encoding or "ascii"
        text = render(found.diagnosis, "terminal", options)
        sys.stderr.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stderr.flush()
