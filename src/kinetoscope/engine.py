"""From paths to the result document: open, analyse, run the rules, rank, decide the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import kinetoscope
from kinetoscope.analysis import Analysis
from kinetoscope.analysis.budgeting import budget
from kinetoscope.analysis.captured import (
    capture_info,
    capture_notes,
    options_for,
    with_compile_lines,
    with_worker_lines,
)
from kinetoscope.analysis.job import leading
from kinetoscope.analysis.path import critical_path_of
from kinetoscope.analysis.profile import profile
from kinetoscope.analysis.utilisation import utilisation
from kinetoscope.analysis.variation import variation, variation_notes
from kinetoscope.errors import UsageError
from kinetoscope.metrics.device import device_timeline
from kinetoscope.metrics.hardware import Peaks
from kinetoscope.notes import notes_for
from kinetoscope.outlook import with_outlook
from kinetoscope.result import (
    SCHEMA_VERSION,
    DeviceInfo,
    Diagnosis,
    InputInfo,
    StepTime,
)
from kinetoscope.rules.already import without_what_is_on
from kinetoscope.rules.api import Outcome, Rule, finding_of
from kinetoscope.rules.ordering import ranked
from kinetoscope.rules.precedence import apply_precedence
from kinetoscope.rules.registry import all_rules, select_rules
from kinetoscope.trace.job import Job, open_paths
from kinetoscope.trace.trace import Trace
from kinetoscope.verdict import decide, led_by_verdict

_LONGEST_STEP_MS = 86_400_000.0

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class DiagnoseOptions:
    """What a caller may set.

    Attributes:
        select, ignore: rule code prefixes.
        real_step_ms: unprofiled step time, ms; pins the profiling overhead.
        source_root: folder with the program's sources, for exact lines and snippets.
        preview: run rules that no recording has proved yet.
        device_peaks: what the devices can do, in place of the tables' entry.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    real_step_ms: float | None = None
    source_root: Path | None = None
    preview: bool = False
    device_peaks: Peaks | None = None


@dataclass(frozen=True)
class Examined:
    """A diagnosis with the analyses that it came from.

    Attributes:
        lead: the rank that the diagnosis speaks of.
        ranks: all ranks.
    """

    diagnosis: Diagnosis
    lead: Analysis
    ranks: tuple[Analysis, ...]


def diagnose(
    paths: Sequence[str | Path] | str | Path,
    *,
    options: DiagnoseOptions | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """Diagnose trace files, or folders of rank files.

    Raises:
        InputError: nothing could be read; the message names the file and the next step.
        UsageError: a rule prefix that fits no rule.
    """
    return examine(paths, options=options, progress=progress).diagnosis


def examine(
    paths: Sequence[str | Path] | str | Path,
    *,
    options: DiagnoseOptions | None = None,
    progress: Progress | None = None,
) -> Examined:
    """Diagnose like `diagnose` and keep the analyses, for whatever shows more than the result."""
    options = options or DiagnoseOptions()
    _check_real_step(options.real_step_ms)
    rules = select_rules(all_rules(), options.select, options.ignore, preview=options.preview)
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    job = open_paths([Path(p) for p in given], progress=progress)
    return examine_job(job, rules, options=options, progress=progress)


def diagnose_job(
    job: Job,
    rules: tuple[Rule, ...],
    *,
    options: DiagnoseOptions | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """Diagnose what has been read."""
    return examine_job(job, rules, options=options, progress=progress).diagnosis


def _check_real_step(real_step_ms: float | None) -> None:
    if real_step_ms is None or 0 < real_step_ms <= _LONGEST_STEP_MS:
        return
    raise UsageError(
        f"the real step time is {real_step_ms} ms: it must be more than 0 and at most a day",
        hint="Give the time of one step without the profiler, in milliseconds.",
    )


def examine_job(
    job: Job,
    rules: tuple[Rule, ...],
    *,
    options: DiagnoseOptions | None = None,
    progress: Progress | None = None,
) -> Examined:
    """Diagnose what has been read and keep the analyses."""
    options = options or DiagnoseOptions()
    analyses = _analyses(job, options)
    lead = leading(analyses)
    outcomes = run_rules(lead, rules, progress)
    told = [(finding_of(o.rule, hit), hit.gain) for o in outcomes for hit in o.hits]
    findings, together = with_outlook(
        lead, ranked(f for f, _ in told), {id(f): gain for f, gain in told}
    )
    findings = with_compile_lines(lead, with_worker_lines(lead, findings))
    lines = budget(lead)
    verdict = decide(lead, lines, findings)
    step_time = lead.step_time
    spread = variation(lead)
    captured = capture_info(lead)
    notes = (*capture_notes(captured), *notes_for(lead, job), *variation_notes(spread))
    diagnosis = Diagnosis(
        schema_version=SCHEMA_VERSION,
        kinetoscope=kinetoscope.__version__,
        inputs=tuple(_input_info(trace) for trace in job.traces),
        verdict=verdict,
        step=StepTime(
            count=lead.trace.steps.count,
            source=lead.trace.steps.source,
            time_ns=step_time,
            recorded_ns=lead.step_ns,
            variation=spread,
        ),
        budget=lines,
        device_timeline=tuple(
            row
            for i, a in enumerate(analyses)
            for row in device_timeline(a.trace, _rank_of(a.trace, i))
        ),
        findings=led_by_verdict(verdict, findings),
        rules=tuple(outcome.record() for outcome in outcomes),
        notes=notes,
        capture=captured,
        profile=profile(analyses, lead, world_size=job.world_size),
        together=together,
        utilisation=utilisation(lead),
        critical_path=critical_path_of(lead),
    )
    return Examined(diagnosis, lead, analyses)


def _analyses(job: Job, options: DiagnoseOptions) -> tuple[Analysis, ...]:
    real = options.real_step_ms
    real_ns = round(real * 1e6) if real is not None else None
    analyses = tuple(
        Analysis(
            trace,
            options_for(
                trace,
                real_step_ns=real_ns,
                source_root=options.source_root,
                device_peaks=options.device_peaks,
            ),
        )
        for trace in job.traces
    )
    for analysis in analyses:
        analysis.peers = tuple(a for a in analyses if a is not analysis)
    return analyses


def run_rules(
    analysis: Analysis, rules: tuple[Rule, ...], progress: Progress | None = None
) -> tuple[Outcome, ...]:
    """Run every rule and let the stronger findings absorb the weaker ones."""
    outcomes = []
    for done, rule in enumerate(rules):
        if progress:
            progress("rules", done, len(rules))
        outcomes.append(rule.run(analysis))
    captured = analysis.trace.sidecar
    known = without_what_is_on(outcomes, captured.facts if captured else None)
    return apply_precedence(known)


def _rank_of(trace: Trace, index: int) -> int:
    return trace.header.rank if trace.header.rank is not None else index


def _input_info(trace: Trace) -> InputInfo:
    return InputInfo(
        path=trace.path,
        kind=trace.kind,
        rank=trace.header.rank,
        events=len(trace),
        devices=tuple(DeviceInfo(d.id, d.name) for d in trace.header.devices),
        torch=trace.torch,
        damage=trace.damage,
    )


__all__ = [
    "DiagnoseOptions",
    "Examined",
    "diagnose",
    "diagnose_job",
    "examine",
    "examine_job",
    "run_rules",
]
